//! Allocation. PROVISIONAL bump allocator.

//! Published bugs from the field: crashes that lost or corrupted stored data in other systems.
//!
//! The seeded mistakes ([`super::seeds`]) refer to these bugs by name.

/// A published bug.
pub struct FieldBug {
    /// Its name: B1 to B47.
    pub name: &'static str,
    /// The system that had it.
    pub system: &'static str,
    /// What was wrong.
    pub what: &'static str,
    /// Who published it.
    pub source: &'static str,
}

/// All published bugs.
#[rustfmt::skip]
pub fn field_bugs() -> Vec<FieldBug> {
    let bug = |name, system, what, source| FieldBug { name, system, what, source };
    vec![
        bug("B1", "FAST&FAIR", "a deletion shifts the other way than an insertion, and flushes as an insertion does", "Witcher 3"),
        bug("B2", "FAST&FAIR", "a crash in a shift leaves a duplicate, which lookups tolerate and deletions do not", "Witcher 4"),
        bug("B3", "FAST&FAIR", "a crash between the link of a sibling and the new root leaves a list without a root", "Witcher 5"),
        bug("B4", "FAST&FAIR", "a merge is not atomic", "Witcher 6"),
        bug("B5", "FAST&FAIR", "the middle key of a split stays in both nodes", "DICL 4, 5"),
        bug("B6", "FAST&FAIR", "nobody completes an interrupted split in the parent", "DICL 6"),
        bug("B7", "FAST&FAIR", "a pointer is visible to readers before it is durable", "HawkSet 1, 2"),
        bug("B8", "FAST&FAIR, CCEH, P-BwTree, P-ART", "the root object is not flushed", "Jaaru"),
        bug("B9", "FAST&FAIR", "header fields are not flushed, and their order matters", "PSan"),
        bug("B10", "Level hashing", "the token is set before key and value are durable", "Witcher 7-16"),
        bug("B11", "Level hashing", "an entry moves by two tokens: a crash leaves two", "Witcher 19-21"),
        bug("B12", "Level hashing", "an update clears the old token, then sets the new: a crash leaves none", "Witcher 22, 23"),
        bug("B13", "Level hashing", "the capacity is updated before the buckets exist", "Witcher 17, 18"),
        bug("B14", "CCEH", "depth and pattern of a segment are durable before the directory knows the new one", "Witcher 24"),
        bug("B15", "CCEH", "a crash after a slot was reserved leaves it dead for ever", "Witcher 25"),
        bug("B16", "CCEH", "a lock word in persistent memory is found locked", "PSan"),
        bug("B17", "P-ART", "count and children of a node are not one commit", "Witcher 26, 27"),
        bug("B18", "P-ART", "a reader follows a child pointer that is not durable", "HawkSet 8, 9"),
        bug("B19", "P-ART", "the list of what is to be freed is not durable", "Jaaru, PSan 7, 9"),
        bug("B20", "P-BwTree", "the tail of the allocator is not flushed: two get one block", "Witcher 28, 29"),
        bug("B21", "P-CLHT", "a recursive flush goes along the wrong pointer: overflow buckets are never flushed", "Witcher 30"),
        bug("B22", "P-CLHT", "a new table is visible before it is durable; what others insert into it is lost", "PMRace, HawkSet 3"),
        bug("B23", "P-CLHT", "what was freed is not noted durably: it is freed twice", "RECIPE 24"),
        bug("B24", "P-HOT", "new nodes are flushed, but no fence comes before their link", "Witcher 36, 37"),
        bug("B25", "P-HOT", "the address of a temporary is flushed", "Witcher 38"),
        bug("B26", "P-HOT", "readers return values that are not durable", "RECIPE 13"),
        bug("B27", "P-Masstree", "the split of a root is not atomic", "Witcher 39, HawkSet 5-7"),
        bug("B28", "WOART", "a reference and a path are two words that are taken for one", "Witcher 2"),
        bug("B29", "LB+-Tree", "one word publishes the entry and unlocks the leaf, and is flushed after", "lbtree 2"),
        bug("B30", "APEX, WIPE, SEPH, TurboHash", "lookups return what is not durable", "HawkSet 4, 16-20"),
        bug("B31", "PMwCAS, BzTree", "a block is allocated into a variable on the stack: a crash leaks it", "pmwcas 8"),
        bug("B32", "libpmemobj, libart", "allocations and commits of large transactions are not atomic", "PMDK 4945, 5461, 5512"),
        bug("B33", "PMDK's examples", "an object is changed without a log of what it was", "Witcher 40-46"),
        bug("B34", "memcached-pmem", "an item's fields are written after it was linked", "Witcher 47"),
        bug("B35", "22 ported programs", "a crash while the pool is created leaves no root", "Witcher"),
        bug("B36", "Corundum", "a copy on the stack is flushed instead of the object", "Corundum 2"),
        bug("B37", "Ralloc", "a pointer variable is flushed instead of the descriptor that it points to", "read in the source"),
        bug("B38", "PMFS, WineFS", "the last line of a range that is not aligned is not flushed", "Chipmunk"),
        bug("B39", "NOVA", "the tail of a copy by non-temporal stores is stored otherwise, and not flushed", "Vinter"),
        bug("B40", "NOVA-Fortis", "without a fence, log and copy of the log become durable in any order", "Chipmunk"),
        bug("B41", "PMFS", "recovery uses volatile state before it has rebuilt it", "Chipmunk"),
        bug("B42", "TLBTree", "recovery takes over a saved list without looking", "afa3520, 053d807"),
        bug("B43", "redb", "the header knows of a growth that the file does not have yet", "fd82ced"),
        bug("B44", "HomeStore", "recovery throws a durable new root away, because the superblock does not know it", "HomeStore 900"),
        bug("B45", "OrioleDB", "after a crash a block is neither free nor in use, and every check is content", "orioledb 861"),
        bug("B46", "RECIPE, memcached-pmem", "the compiler tears plain stores", "RECIPE 20"),
        bug("B47", "RocksDB", "what was recovered of a sequence of writes has a hole", "rocksdb 13169"),
    ]
}

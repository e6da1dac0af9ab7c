//! The claims: one row each, in the order of the papers.

use super::evidence::{Evidence, Judgement};
use super::{COUNT_TOLERANCE, Row, Rule, TIME_TOLERANCE};
use crate::raw::{FLUSHED_LINE, STORE};
use crate::result::{Verdict, metric};
use everleaf_index::registry;
use everleaf_pmem::Hardware;

/// Every claim.
pub(super) const ROWS: &[Row] = &[
    Row {
        paper: "isle",
        id: "A1",
        place: "abstract, Fig. 7a",
        what: "insert 10 M keys: time above that of Isle-Tree",
        figure: "NV 11.6 %, FP 41.0 %, wB 124.3 %, FAST-FAIR 55.0 %, Circ 49.1 %",
        needs: &["isle", "nv", "fp", "wb"],
        lacks: &["fast-fair", "circ", "isle-all"],
        rule: Rule::Ratios {
            experiment: "isle-insert",
            workload: "",
            phase: "insert",
            metric: metric::MEAN,
            base: "isle",
            of: &[("nv", 1.116, 1.116), ("fp", 1.41, 1.41), ("wb", 2.243, 2.243)],
            tolerance: TIME_TOLERANCE,
        },
        why: "300 ns are added to each line flushed, as there. Isle-Tree writes both leaves of a division in full, 17 lines, a third of all its time; \
               FPTree flushes 2 lines an insert here, not 3 (A4), and NV-Tree only those of new leaves that hold something.",
    },
    Row {
        paper: "isle",
        id: "A2",
        place: "Fig. 7a",
        what: "insert 1, 10, 100 M keys",
        figure: "Isle-Tree is the fastest at every size",
        needs: &["isle", "nv", "fp", "wb"],
        lacks: &["fast-fair", "circ", "isle-all"],
        rule: Rule::By(&["isle-insert"], fastest_at_every_size),
        why: "See A1.",
    },
    Row {
        paper: "isle",
        id: "A3",
        place: "Fig. 7b",
        what: "lines flushed by inserts of 10 M keys, above those of Isle-Tree",
        figure: "FAST-FAIR 109.2 %, Circ 53.2 %, FP 44.0 %, wB 2.6 times, NV about equal",
        needs: &["isle", "nv", "fp", "wb"],
        lacks: &["fast-fair", "circ"],
        rule: Rule::Ratios {
            experiment: "isle-counts",
            workload: "",
            phase: "insert",
            metric: metric::LINES_FLUSHED,
            base: "isle",
            of: &[("nv", 1.0, 1.0), ("fp", 1.44, 1.44), ("wb", 2.6, 2.6)],
            tolerance: COUNT_TOLERANCE,
        },
        why: "Ours are right for what is written here. FPTree flushes 2 lines, not 3: fingerprint and bitmap share a line, and the order of stores \
               within a line is enough; with the third line it would come to 1.3 times. wB+-Tree flushes 4 lines an insert, as its protocol has it, and \
               its redo log is three lines a division, where the paper's figure leaves room for a log of whole nodes. Isle-Tree writes both leaves of a \
               division in full, 0.8 lines an insert; NV-Tree has the same 2 lines an insert, and writes only those lines of new leaves that hold \
               something.",
    },
    Row {
        paper: "isle",
        id: "A4",
        place: "V-B",
        what: "lines flushed by an insert that divides no leaf",
        figure: "Isle 2, wB at least 4, FP one more than Isle",
        needs: &["isle", "wb", "fp"],
        lacks: &[],
        rule: Rule::Values {
            experiment: "isle-counts",
            workload: "",
            phase: "insert",
            metric: "common lines flushed",
            of: &[("isle", 2.0, 2.0), ("wb", 4.0, 8.0), ("fp", 3.0, 3.0)],
            tolerance: COUNT_TOLERANCE,
        },
        why: "FPTree flushes fingerprint and bitmap together, as they share a line, whose order of stores is enough: the paper's third flush is not \
               needed, and the crash checker finds nothing without it. Isle and wB are as the paper has them.",
    },
    Row {
        paper: "isle",
        id: "A5",
        place: "Fig. 7c",
        what: "search 10 M keys: time above that of Isle-Tree",
        figure: "NV 37.0 %, FP 18.9 %, wB 23.0 %, Circ 18.3 %; FAST-FAIR comparable",
        needs: &["isle", "nv", "fp", "wb"],
        lacks: &["fast-fair", "circ", "isle-all"],
        rule: Rule::Ratios {
            experiment: "isle-search",
            workload: "",
            phase: "search",
            metric: metric::MEAN,
            base: "isle",
            of: &[("nv", 1.37, 1.37), ("fp", 1.189, 1.189), ("wb", 1.23, 1.23)],
            tolerance: TIME_TOLERANCE,
        },
        why: "Isle, FP and wB have the same router in DRAM here, which takes most of a lookup; in the paper each has its own.",
    },
    Row {
        paper: "isle",
        id: "A6",
        place: "Fig. 8a",
        what: "share of the time of inserts that is spent in those that divide a leaf",
        figure: "about 20 %; more for NV-Tree, which builds inner nodes anew",
        needs: &["isle", "nv", "fp", "wb"],
        lacks: &["fast-fair", "circ"],
        rule: Rule::By(&["isle-splits"], split_share),
        why: "The whole time of such an insert counts, its descent included; 17 lines of 300 ns each are what a division of Isle-Tree takes. Building \
               inner nodes anew, which NV-Tree's router does, falls upon inserts that divide a leaf.",
    },
    Row {
        paper: "isle",
        id: "A7",
        place: "V-B",
        what: "a leaf of 512 B: pairs in it, and inserts for each division",
        figure: "at most 32 pairs, a division in about 32 inserts",
        needs: &["isle"],
        lacks: &[],
        rule: Rule::By(&["isle-counts"], inserts_for_a_split),
        why: "The paper divides 512 B by 16 B, and forgets the header, and that a division leaves two leaves half full: each takes only half as many \
               inserts until the next.",
    },
    Row {
        paper: "isle",
        id: "A8",
        place: "Fig. 8b",
        what: "nodes of 512 B, 1 and 2 KiB: insert and search 10 M keys",
        figure: "inserts of NV and Isle stay flat, those of wB, FAST-FAIR and Circ degrade; Isle searches faster than NV",
        needs: &["isle", "isle-1k", "isle-2k", "nv", "nv-1k", "nv-2k", "wb", "wb-1k"],
        lacks: &["fast-fair", "circ"],
        rule: Rule::By(&["isle-nodes"], larger_nodes),
        why: "wB+-Tree has no leaves of 2 KiB here, as its slot array holds bytes.",
    },
    Row {
        paper: "isle",
        id: "A9",
        place: "Fig. 8c",
        what: "insert 10 M keys at 0 to 600 ns of write latency",
        figure: "the gap between FAST-FAIR and Isle grows from 20.0 % to 70.8 %",
        needs: &["fast-fair"],
        lacks: &[],
        rule: Rule::By(&["isle-latency"], gap_over_latency),
        why: "What is there of the others is measured in isle-latency.",
    },
    Row {
        paper: "isle",
        id: "A10",
        place: "abstract, Fig. 9a",
        what: "YCSB's load of 1 M string keys, 4 clients: 99th percentile of the latency, Isle-Tree below the others",
        figure: "by NV 33.1 %, FP 27.7 %, FAST-FAIR 36.2 %, Circ 22.4 %",
        needs: &["isle", "nv", "fp"],
        lacks: &["fast-fair", "circ"],
        rule: Rule::By(&["isle-clients"], tail_latency),
        why: "Four clients and four threads of the server share two cores here; there they have four.",
    },
    Row {
        paper: "isle",
        id: "A11",
        place: "Fig. 9b, 9c",
        what: "YCSB: half searches, half updates of 1 M keys",
        figure: "Isle similar to the others or slightly better; latency grows with the clients for all",
        needs: &["isle", "nv", "fp"],
        lacks: &["fast-fair", "circ"],
        rule: Rule::By(&["isle-clients"], mixed_latency),
        why: "Similar means within a quarter. Clients and server share two cores here.",
    },
    Row {
        paper: "isle",
        id: "A12",
        place: "Fig. 1, 2",
        what: "one insert and one search in a node of four lines, step by step",
        figure: "sorted: 4 pairs moved, 2 lines written; unsorted: 1 line; a search: 4 comparisons",
        needs: &["fast-fair"],
        lacks: &[],
        rule: Rule::Not(Verdict::NotYetPossible),
        why: "A sorted node is needed beside Isle's.",
    },
    Row {
        paper: "isle",
        id: "A13",
        place: "III-B",
        what: "lines flushed by the worst insert",
        figure: "FAST-FAIR all of the node, Circ half of them",
        needs: &["fast-fair", "circ"],
        lacks: &[],
        rule: Rule::Not(Verdict::NotYetPossible),
        why: "",
    },
    Row {
        paper: "lb",
        id: "B1",
        place: "2.1",
        what: "3DXP memory beside DRAM",
        figure: "reads 2 to 3 times slower; clwb and sfence make writes up to 10 times slower; units of 256 B",
        needs: &[],
        lacks: &[],
        rule: Rule::By(&[], flushed_store),
        why: "The memory here is DRAM, so what is compared is a store with and without write-back; there it is 3DXP.",
    },
    Row {
        paper: "lb",
        id: "B2",
        place: "Theorem 3.5, Fig. 8",
        what: "lines written by an insert into a leaf that is in its stable state, without and with the moving of entries",
        figure: "1.77 and 1.31 on average",
        needs: &["lb"],
        lacks: &[],
        rule: Rule::By(&["lb-counts"], moved_entries),
        why: "Theorem 3.5 promises at most 1.31 with moving, Theorem 3.6 the same in larger leaves. There is no tree without moving here; 1.77 is the \
               theorem's.",
    },
    Row {
        paper: "lb",
        id: "B3",
        place: "3.4",
        what: "one header in leaves of 512, 768 and 1024 B: bytes of it, and slots left in its line",
        figure: "32, 49, 66 B; 2, 0, 0 slots",
        needs: &[],
        lacks: &[],
        rule: Rule::Arithmetic(naive_header),
        why: "Recomputed: 1 bit and 1 byte an entry, a lock bit, a bit for the sibling, two siblings of 8 B at the end.",
    },
    Row {
        paper: "lb",
        id: "B4",
        place: "3.5",
        what: "share of metadata in a leaf",
        figure: "12.5 %; the second header of larger leaves takes less than 6.25 %",
        needs: &["lb"],
        lacks: &[],
        rule: Rule::Arithmetic(metadata_share),
        why: "14 entries of 16 B in 256 B; of m times 256 B, all but the first have another header of 16 B.",
    },
    Row {
        paper: "lb",
        id: "B5",
        place: "Fig. 10",
        what: "skip lists in DRAM, in persistent memory, divided between both: lookup, insert, delete",
        figure: "divided is about 1.5 times as fast as persistent",
        needs: &["skip-dram", "skip-nvm", "skip-divided"],
        lacks: &[],
        rule: Rule::Not(Verdict::NotYetPossible),
        why: "",
    },
    Row {
        paper: "lb",
        id: "B6",
        place: "Fig. 11a",
        what: "50 to 300 thousand random inserts, leaves 70 % full, one thread: LB+-Tree faster by",
        figure: "1.20 to 1.24 x wB, 1.12 to 1.21 x FP",
        needs: &["lb", "wb-256", "fp-256"],
        lacks: &[],
        rule: Rule::Ratios {
            experiment: "lb-insert",
            workload: "70 %",
            phase: "insert",
            metric: metric::MEAN,
            base: "lb",
            of: &[("wb-256", 1.2, 1.24), ("fp-256", 1.12, 1.21)],
            tolerance: TIME_TOLERANCE,
        },
        why: "There 2 billion keys lie on 3DXP, whose write-back takes several times as long as that of DRAM here, and inner nodes have ten levels. Here \
               wB+-Tree takes four flushed lines and three fences where LB+-Tree takes one or two.",
    },
    Row {
        paper: "lb",
        id: "B7",
        place: "Fig. 11b",
        what: "the same, leaves 100 % full",
        figure: "2.55 to 2.92 x wB, 2.31 to 2.45 x FP",
        needs: &["lb", "wb-256", "fp-256"],
        lacks: &[],
        rule: Rule::Ratios {
            experiment: "lb-insert",
            workload: "100 %",
            phase: "insert",
            metric: metric::MEAN,
            base: "lb",
            of: &[("wb-256", 2.55, 2.92), ("fp-256", 2.31, 2.45)],
            tolerance: TIME_TOLERANCE,
        },
        why: "Nearly every insert divides a leaf. That and the insert take 6 flushed lines and 2 fences in LB+-Tree, which needs no log, 10 lines and 6 fences \
               in FPTree, 12 and 7 in wB+-Tree; and allocation and the router take their time in all three.",
    },
    Row {
        paper: "lb",
        id: "B8",
        place: "Fig. 11c",
        what: "the same, ascending keys beyond all others",
        figure: "2.31 to 2.69 x wB, 2.22 to 2.33 x FP",
        needs: &["lb", "wb-256", "fp-256"],
        lacks: &[],
        rule: Rule::Ratios {
            experiment: "lb-insert",
            workload: "dense",
            phase: "insert",
            metric: metric::MEAN,
            base: "lb",
            of: &[("wb-256", 2.31, 2.69), ("fp-256", 2.22, 2.33)],
            tolerance: TIME_TOLERANCE,
        },
        why: "Ascending keys fall into one leaf, whose lines stay in the cache here after a flush; there each flush of a line that has just been flushed \
               waits for the device.",
    },
    Row {
        paper: "lb",
        id: "B9",
        place: "overall",
        what: "inserts by one thread: LB+-Tree faster by",
        figure: "1.20 to 2.92 x wB, 1.12 to 2.45 x FP",
        needs: &["lb", "wb-256", "fp-256"],
        lacks: &[],
        rule: Rule::By(&["lb-insert"], overall_range),
        why: "See B6, B7 and B8.",
    },
    Row {
        paper: "lb",
        id: "B10",
        place: "Fig. 12a",
        what: "1 to 16 threads, leaves 70 % full: LB+-Tree faster by",
        figure: "1.17 to 1.30 x wB, 1.22 to 1.38 x FP; nearly linear",
        needs: &["lb", "wb-256", "fp-256"],
        lacks: &[],
        rule: Rule::By(&["lb-threads", "lb-insert"], two_threads),
        why: "Two threads here; nearly linear means at least 1.7 times as many with two.",
    },
    Row {
        paper: "lb",
        id: "B11",
        place: "Fig. 12b",
        what: "the same, leaves 100 % full",
        figure: "2.35 to 2.69 x wB, 2.10 to 2.53 x FP",
        needs: &["lb", "wb-256", "fp-256"],
        lacks: &[],
        rule: Rule::Ratios {
            experiment: "lb-threads",
            workload: "100 %",
            phase: "insert",
            metric: metric::MEAN,
            base: "lb",
            of: &[("wb-256", 2.35, 2.69), ("fp-256", 2.1, 2.53)],
            tolerance: TIME_TOLERANCE,
        },
        why: "See B7. Two threads here.",
    },
    Row {
        paper: "lb",
        id: "B12",
        place: "Fig. 12c",
        what: "the same, ascending keys, a hot spot for each thread",
        figure: "1.90 to 2.38 x wB, 1.89 to 2.55 x FP",
        needs: &["lb", "wb-256", "fp-256"],
        lacks: &[],
        rule: Rule::Ratios {
            experiment: "lb-threads",
            workload: "dense",
            phase: "insert",
            metric: metric::MEAN,
            base: "lb",
            of: &[("wb-256", 1.9, 2.38), ("fp-256", 1.89, 2.55)],
            tolerance: TIME_TOLERANCE,
        },
        why: "Two threads here, each with a run of ascending keys of its own.",
    },
    Row {
        paper: "lb",
        id: "B13",
        place: "Fig. 13",
        what: "100 thousand inserts by size of the leaves, three cases",
        figure: "LB+ best everywhere; 512 B slightly best at 70 %; 256 B best at 100 % and for ascending keys",
        needs: &["lb", "lb-512", "lb-768", "lb-1k", "wb-256", "wb-1k", "fp-256", "fp-1k"],
        lacks: &[],
        rule: Rule::By(&["lb-nodes"], leaf_sizes),
        why: "The three cases are those of B6, B7 and B8.",
    },
    Row {
        paper: "lb",
        id: "B14",
        place: "Fig. 14",
        what: "50 to 300 thousand searches, and deletes, leaves 70 % full",
        figure: "all three similar",
        needs: &["lb", "wb-256", "fp-256"],
        lacks: &[],
        rule: Rule::By(&["lb-reads"], similar_reads),
        why: "Similar means within a quarter.",
    },
    Row {
        paper: "lb",
        id: "B15",
        place: "4.2",
        what: "search within one leaf",
        figure: "27 ns for wB, 21 ns for FP and LB+; 823 ns from the root",
        needs: &[],
        lacks: &[],
        rule: Rule::Not(Verdict::CannotCompare),
        why: "A leaf is not searched by itself here: the driver sees whole lookups, of which lb-reads has the time.",
    },
    Row {
        paper: "lb",
        id: "B16",
        place: "Fig. 15a",
        what: "building the inner nodes of 2 billion keys again, by size of the leaves",
        figure: "the larger the leaves, the faster",
        needs: &["lb", "lb-512", "lb-768", "lb-1k"],
        lacks: &[],
        rule: Rule::By(&["lb-rebuild"], rebuild_by_size),
        why: "The whole of opening the file is measured here, which is more than inner nodes: mapping, finding out which blocks are in use.",
    },
    Row {
        paper: "lb",
        id: "B17",
        place: "Fig. 15b",
        what: "the same with 1 to 16 threads",
        figure: "1.2 s to 0.1 s",
        needs: &["lb"],
        lacks: &[],
        rule: Rule::By(&["lb-rebuild"], rebuild_by_threads),
        why: "Two threads here, on fewer keys.",
    },
    Row {
        paper: "lb",
        id: "B18",
        place: "Fig. 16",
        what: "db_bench in X-Engine, one thread, LB+-Tree in place of a divided skip list",
        figure: "Get 1.31 to 1.54 x, sequential Put 1.44 to 1.80 x, random Put 1.46 to 1.83 x",
        needs: &["skip-divided"],
        lacks: &[],
        rule: Rule::Not(Verdict::NotYetPossible),
        why: "X-Engine is not here either.",
    },
    Row {
        paper: "lb",
        id: "B19",
        place: "Fig. 16",
        what: "the same with 16 threads",
        figure: "1.25 to 1.40 x, 1.35 to 1.64 x, 1.28 to 1.46 x",
        needs: &["skip-divided"],
        lacks: &[],
        rule: Rule::Not(Verdict::NotYetPossible),
        why: "",
    },
    Row {
        paper: "lb",
        id: "B20",
        place: "Fig. 17",
        what: "Memcached on the trees, 50 M keys of 20 B",
        figure: "LB+ 1.05 to 1.29 x wB, 1.06 to 1.22 x FP",
        needs: &["lb", "wb-256", "fp-256"],
        lacks: &[],
        rule: Rule::By(&["lb-server"], served),
        why: "A server that speaks Redis's protocol, keys of 20 B; the round trip through the socket takes most of the time.",
    },
    Row {
        paper: "lb",
        id: "B21",
        place: "4.1",
        what: "lines of code to put it into another program",
        figure: "below 150",
        needs: &[],
        lacks: &[],
        rule: Rule::Not(Verdict::CannotCompare),
        why: "A matter of their code, not of a measurement.",
    },
    Row {
        paper: "sentinels",
        id: "C1",
        place: "search",
        what: "nodes of 4 KiB: searches faster with sentinels",
        figure: "FAST-FAIR 42.6 %, Circ 48.4 %",
        needs: &["fast-fair", "fast-fair-s", "circ", "circ-s"],
        lacks: &[],
        rule: Rule::Not(Verdict::NotYetPossible),
        why: "",
    },
    Row {
        paper: "sentinels",
        id: "C2",
        place: "insert",
        what: "nodes of 4 KiB: inserts slower with sentinels",
        figure: "FAST-FAIR 4.0 %, Circ 6.5 %",
        needs: &["fast-fair", "fast-fair-s", "circ", "circ-s"],
        lacks: &[],
        rule: Rule::Not(Verdict::NotYetPossible),
        why: "",
    },
    Row {
        paper: "sentinels",
        id: "C3",
        place: "YCSB",
        what: "tail latency of searches with sentinels, nodes of 4 KiB",
        figure: "16.9 % and 13.0 % better",
        needs: &["fast-fair", "fast-fair-s", "circ", "circ-s"],
        lacks: &[],
        rule: Rule::Not(Verdict::NotYetPossible),
        why: "",
    },
    Row {
        paper: "sentinels",
        id: "C4",
        place: "design",
        what: "search for one of 13 keys",
        figure: "3 misses and 11 comparisons become 2 and 7",
        needs: &["fast-fair", "fast-fair-s", "circ", "circ-s"],
        lacks: &[],
        rule: Rule::Not(Verdict::NotYetPossible),
        why: "",
    },
    Row {
        paper: "sentinels",
        id: "C5",
        place: "design",
        what: "a range of 13 keys",
        figure: "3 misses and 9 comparisons become 2 misses and 3 keys of one line",
        needs: &["fast-fair", "fast-fair-s", "circ", "circ-s"],
        lacks: &[],
        rule: Rule::Not(Verdict::NotYetPossible),
        why: "",
    },
    Row {
        paper: "sentinels",
        id: "C6",
        place: "conclusion",
        what: "misses of the cache",
        figure: "fewer with sentinels",
        needs: &["fast-fair", "fast-fair-s", "circ", "circ-s"],
        lacks: &[],
        rule: Rule::Not(Verdict::NotYetPossible),
        why: "",
    },
    Row {
        paper: "nv",
        id: "D1",
        place: "Fig. 1a",
        what: "nodes of 4 KiB: trees beside themselves without flushes",
        figure: "LCB+ 16 times, CDDS 20 times slower",
        needs: &["lcb", "cdds"],
        lacks: &[],
        rule: Rule::Not(Verdict::NotYetPossible),
        why: "",
    },
    Row {
        paper: "nv",
        id: "D2",
        place: "2.4",
        what: "CDDS beside LCB+",
        figure: "11 to 32 % slower with fewer flushes",
        needs: &["lcb", "cdds"],
        lacks: &[],
        rule: Rule::Not(Verdict::NotYetPossible),
        why: "",
    },
    Row {
        paper: "nv",
        id: "D3",
        place: "Fig. 1b",
        what: "misses of the last cache by size of the node",
        figure: "in proportion, with flushes",
        needs: &["lcb", "cdds"],
        lacks: &[],
        rule: Rule::Not(Verdict::NotYetPossible),
        why: "",
    },
    Row {
        paper: "nv",
        id: "D4",
        place: "Fig. 1c",
        what: "flushes of 1 M inserts of LCB+, nodes of 0.5, 1, 2, 4 KiB",
        figure: "14.8, 24.6, 44.7, 85.26 M",
        needs: &["lcb"],
        lacks: &[],
        rule: Rule::Not(Verdict::NotYetPossible),
        why: "",
    },
    Row {
        paper: "nv",
        id: "D5",
        place: "Fig. 1c",
        what: "flushes of 1 M inserts of CDDS",
        figure: "12.1, 19.0, 34.2, 64.7 M",
        needs: &["cdds"],
        lacks: &[],
        rule: Rule::Not(Verdict::NotYetPossible),
        why: "",
    },
    Row {
        paper: "nv",
        id: "D6",
        place: "Fig. 1d",
        what: "what is flushed: sorting of leaves, rest of leaves, inner nodes",
        figure: "sorting 60 to 97 %, leaves over 90 %",
        needs: &["lcb", "cdds"],
        lacks: &[],
        rule: Rule::Not(Verdict::NotYetPossible),
        why: "",
    },
    Row {
        paper: "nv",
        id: "D7",
        place: "introduction",
        what: "flushes of leaves, NV-Tree beside others",
        figure: "82 to 96 % fewer",
        needs: &["nv", "lcb", "cdds"],
        lacks: &[],
        rule: Rule::Not(Verdict::NotYetPossible),
        why: "",
    },
    Row {
        paper: "nv",
        id: "D8",
        place: "Fig. 5a",
        what: "inserts by size of the node: NV-Tree faster than LCB+ and CDDS",
        figure: "up to 8 and 16 times; NV-Tree itself faster with larger nodes",
        needs: &["nv", "lcb", "cdds"],
        lacks: &[],
        rule: Rule::Not(Verdict::NotYetPossible),
        why: "What there is of NV-Tree by size stands in nv-nodes.",
    },
    Row {
        paper: "nv",
        id: "D9",
        place: "Fig. 5b",
        what: "flushes of NV-Tree",
        figure: "80 to 97 % fewer than LCB+, 76 to 96 % fewer than CDDS",
        needs: &["nv", "lcb", "cdds"],
        lacks: &[],
        rule: Rule::Not(Verdict::NotYetPossible),
        why: "nv-counts has NV-Tree's own.",
    },
    Row {
        paper: "nv",
        id: "D10",
        place: "Fig. 5c",
        what: "cost of inner nodes that are kept consistent, too",
        figure: "measured there, no number in the text",
        needs: &["nv-consistent"],
        lacks: &[],
        rule: Rule::Not(Verdict::NotYetPossible),
        why: "",
    },
    Row {
        paper: "nv",
        id: "D11",
        place: "Fig. 6",
        what: "1, 10, 100 M inserts, 4 KiB: NV-Tree faster than LCB+",
        figure: "15.2, 6.3, 5.3 times",
        needs: &["nv-4k", "lcb"],
        lacks: &[],
        rule: Rule::Not(Verdict::NotYetPossible),
        why: "",
    },
    Row {
        paper: "nv",
        id: "D12",
        place: "Fig. 6",
        what: "the same, CDDS",
        figure: "8, 9.7, 8.2 times",
        needs: &["nv-4k", "cdds"],
        lacks: &[],
        rule: Rule::Not(Verdict::NotYetPossible),
        why: "",
    },
    Row {
        paper: "nv",
        id: "D13",
        place: "Fig. 7a",
        what: "updates of 1 M keys: NV-Tree faster",
        figure: "5.6 times LCB+, 8.5 times CDDS",
        needs: &["nv", "lcb", "cdds"],
        lacks: &[],
        rule: Rule::Not(Verdict::NotYetPossible),
        why: "",
    },
    Row {
        paper: "nv",
        id: "D14",
        place: "Fig. 7b",
        what: "deletes of 1 M keys",
        figure: "better than LCB+, below CDDS",
        needs: &["nv", "lcb", "cdds"],
        lacks: &[],
        rule: Rule::Not(Verdict::NotYetPossible),
        why: "",
    },
    Row {
        paper: "nv",
        id: "D15",
        place: "Fig. 7a, 7b",
        what: "updates and deletes by size of the node",
        figure: "NV-Tree rises with it, the others fall",
        needs: &["nv", "nv-1k", "nv-4k"],
        lacks: &["lcb", "cdds"],
        rule: Rule::By(&["nv-nodes"], larger_is_faster),
        why: "Leaves are appended to, as there, and larger ones are divided more rarely. But an update and a removal first look for the last element of \
               their key, as there: from the end, through up to 255 elements in 4 KiB. There two flushes of mfence, clflush and mfence take so long that \
               this hardly counts; here a flushed line is one clwb.",
    },
    Row {
        paper: "nv",
        id: "D16",
        place: "Fig. 7c",
        what: "searches",
        figure: "all three comparable",
        needs: &["nv", "lcb", "cdds"],
        lacks: &[],
        rule: Rule::Not(Verdict::NotYetPossible),
        why: "",
    },
    Row {
        paper: "nv",
        id: "D17",
        place: "Fig. 8",
        what: "1 M inserts and searches mixed, from 90/10 to 10/90",
        figure: "NV-Tree 6.6 times LCB+ and 10 times CDDS at 90/10, still best at 10/90",
        needs: &["nv", "lcb", "cdds"],
        lacks: &[],
        rule: Rule::Not(Verdict::NotYetPossible),
        why: "nv-mixes has NV-Tree's own.",
    },
    Row {
        paper: "nv",
        id: "D18",
        place: "Fig. 9a",
        what: "load instructions",
        figure: "44 to 92 % fewer than the others; flat in the size of the node",
        needs: &["nv", "lcb", "cdds"],
        lacks: &[],
        rule: Rule::Not(Verdict::NotYetPossible),
        why: "",
    },
    Row {
        paper: "nv",
        id: "D19",
        place: "Fig. 9b",
        what: "misses of the last cache",
        figure: "24 to 90 % fewer than the others",
        needs: &["nv", "lcb", "cdds"],
        lacks: &[],
        rule: Rule::Not(Verdict::NotYetPossible),
        why: "",
    },
    Row {
        paper: "nv",
        id: "D20",
        place: "Table 2",
        what: "share of the time that is spent on building inner nodes anew",
        figure: "below 1 %",
        needs: &["nv", "nv-1k", "nv-2k", "nv-4k"],
        lacks: &[],
        rule: Rule::By(&["nv-nodes"], rebuild_share),
        why: "",
    },
    Row {
        paper: "nv",
        id: "D21",
        place: "4.7",
        what: "how often 100 M inserts build them anew, by size of the node",
        figure: "7, 4, 3, 2 times",
        needs: &["nv", "nv-1k", "nv-4k"],
        lacks: &[],
        rule: Rule::By(&["nv-counts"], rebuild_count),
        why: "Inserts are fewer here. Parents have 64 leaves here whatever the size of a leaf, and begin a quarter full; in the paper nodes of all \
               levels have one size, and each leaf begins with a parent of its own, so larger nodes mean parents with more room.",
    },
    Row {
        paper: "nv",
        id: "D22",
        place: "3.2.5",
        what: "memory for that, 100 M keys, 4 KiB",
        figure: "1 MB, then 129 MB",
        needs: &["nv-4k"],
        lacks: &[],
        rule: Rule::Not(Verdict::CannotCompare),
        why: "It follows from a parent of 4 KiB for each leaf, which the router here does not have: its parents begin with sixteen leaves.",
    },
    Row {
        paper: "nv",
        id: "D23",
        place: "Fig. 10a",
        what: "divisions of leaves by size of the node",
        figure: "fewer in larger nodes",
        needs: &["nv", "nv-1k", "nv-4k"],
        lacks: &[],
        rule: Rule::By(&["nv-counts"], fewer_splits),
        why: "",
    },
    Row {
        paper: "nv",
        id: "D24",
        place: "Fig. 10b",
        what: "building inner nodes anew from the lowest of them instead of from leaves",
        figure: "22 to 47 % faster",
        needs: &["nv"],
        lacks: &[],
        rule: Rule::Not(Verdict::CannotCompare),
        why: "It is built from the lowest of them always; from leaves only when a pool is opened.",
    },
    Row {
        paper: "nv",
        id: "D25",
        place: "4.7",
        what: "crashes",
        figure: "some thousand cuts of power and of the process, all survived",
        needs: &["nv"],
        lacks: &[],
        rule: Rule::Not(Verdict::CannotCompare),
        why: "Not measured here: `lab crash` recovers every image that a crash can leave of short sequences, and `cargo xtask kill` kills servers on \
               each index.",
    },
    Row {
        paper: "nv",
        id: "D26",
        place: "Fig. 11a",
        what: "StatusUpdate on NV-Store and on Redis 2.8",
        figure: "up to 3.2 times both forms of Redis",
        needs: &["nv-store"],
        lacks: &[],
        rule: Rule::Not(Verdict::NotYetPossible),
        why: "`lab run --workload status-update --systems store,server` measures the store that there is.",
    },
    Row {
        paper: "nv",
        id: "D27",
        place: "Fig. 11b",
        what: "SessionStore on both",
        figure: "up to 4.8 times",
        needs: &["nv-store"],
        lacks: &[],
        rule: Rule::Not(Verdict::NotYetPossible),
        why: "`lab run --workload session-store --systems store,server` measures the store that there is.",
    },
    Row {
        paper: "nv",
        id: "D28",
        place: "Fig. 12",
        what: "inserts slowed down by media of 50 and 180 ns more, 4 KiB",
        figure: "NV 5 and 206 %, LCB+ 51 and 241 %, CDDS 87 and 281 %",
        needs: &["nv-4k"],
        lacks: &["lcb", "cdds"],
        rule: Rule::By(&["nv-media"], slower_media),
        why: "The paper's two figures are at odds with each other: a delay before each write that costs 5 % with 50 ns costs 18 % with 180 ns, whatever the \
               number of writes, and 206 % with 180 ns means 57 % with 50 ns. Here the delay is added to each line that is flushed, 2 an insert and a \
               division's share.",
    },
    Row {
        paper: "nv",
        id: "D29",
        place: "Fig. 13",
        what: "the misses that flushes cause taken away, 4 KiB",
        figure: "7 times LCB+, 9 times CDDS",
        needs: &["nv-4k", "lcb", "cdds"],
        lacks: &[],
        rule: Rule::Not(Verdict::NotYetPossible),
        why: "",
    },
    Row {
        paper: "nv",
        id: "D30",
        place: "Table 1",
        what: "latencies of media",
        figure: "PCM writes 180 ns, STT-RAM 50 ns, flash 25 us, disks 3 ms",
        needs: &[],
        lacks: &[],
        rule: Rule::Not(Verdict::CannotCompare),
        why: "Given by others, not measured there either; 50 and 180 ns are what D28 adds.",
    },
    Row {
        paper: "pftree",
        id: "E1",
        place: "abstract",
        what: "several threads: PFtree faster",
        figure: "1.2 times radix trees, 1.1 to 7 times B+-trees",
        needs: &["pftree", "roart", "p-art", "bztree", "fast-fair"],
        lacks: &[],
        rule: Rule::Not(Verdict::NotYetPossible),
        why: "",
    },
    Row {
        paper: "pftree",
        id: "E2",
        place: "Fig. 2",
        what: "read and write amplification of ROART",
        figure: "large",
        needs: &["roart"],
        lacks: &[],
        rule: Rule::Not(Verdict::NotYetPossible),
        why: "",
    },
    Row {
        paper: "pftree",
        id: "E3",
        place: "Fig. 5a",
        what: "random writes by size, one thread: flushed and waited for, left in the cache, flushed without waiting",
        figure: "the last two equal below 128 B, the last better above 256 B",
        needs: &[],
        lacks: &[],
        rule: Rule::Not(Verdict::NotYetPossible),
        why: "missing: a machine whose caches are in the power-fail domain (eADR); on others it would compare nothing.",
    },
    Row {
        paper: "pftree",
        id: "E4",
        place: "Fig. 5b",
        what: "the same, 8 threads",
        figure: "without waiting better above 64 B",
        needs: &[],
        lacks: &[],
        rule: Rule::Not(Verdict::NotYetPossible),
        why: "missing: a machine whose caches are in the power-fail domain (eADR); on others it would compare nothing.",
    },
    Row {
        paper: "pftree",
        id: "E5",
        place: "Fig. 6a",
        what: "8 B by threads",
        figure: "equal below 12 threads",
        needs: &[],
        lacks: &[],
        rule: Rule::Not(Verdict::NotYetPossible),
        why: "missing: a machine whose caches are in the power-fail domain (eADR); on others it would compare nothing.",
    },
    Row {
        paper: "pftree",
        id: "E6",
        place: "Fig. 6b",
        what: "256 B by threads",
        figure: "without waiting better from 2 threads on",
        needs: &[],
        lacks: &[],
        rule: Rule::Not(Verdict::NotYetPossible),
        why: "missing: a machine whose caches are in the power-fail domain (eADR); on others it would compare nothing.",
    },
    Row {
        paper: "pftree",
        id: "E7",
        place: "Algorithm 1",
        what: "from how many bytes on lines are written back, where caches are durable",
        figure: "256 B",
        needs: &[],
        lacks: &[],
        rule: Rule::Arithmetic(write_back_threshold),
        why: "The domain `eadr` has the paper's threshold by its definition; that it is the best one was not measured, for want of such a machine.",
    },
    Row {
        paper: "pftree",
        id: "E8",
        place: "Fig. 7",
        what: "lookups by 4 threads, M/s",
        figure: "PFtree 2.708, ROART 2.118, P-ART 1.832",
        needs: &["pftree", "roart", "p-art", "bztree", "fast-fair"],
        lacks: &[],
        rule: Rule::Not(Verdict::NotYetPossible),
        why: "",
    },
    Row {
        paper: "pftree",
        id: "E9",
        place: "Fig. 7",
        what: "inserts by 4 threads",
        figure: "PFtree 1.8 M/s, the best",
        needs: &["pftree", "roart", "p-art", "bztree", "fast-fair"],
        lacks: &[],
        rule: Rule::Not(Verdict::NotYetPossible),
        why: "",
    },
    Row {
        paper: "pftree",
        id: "E10",
        place: "Fig. 7",
        what: "update, remove, scan",
        figure: "PFtree best or better",
        needs: &["pftree", "roart", "p-art", "bztree", "fast-fair"],
        lacks: &[],
        rule: Rule::Not(Verdict::NotYetPossible),
        why: "",
    },
    Row {
        paper: "pftree",
        id: "E11",
        place: "Fig. 8",
        what: "from ROART to PFtree step by step",
        figure: "direct values: lookup 15 %, delete 11 % faster, ...",
        needs: &["roart", "pftree"],
        lacks: &[],
        rule: Rule::Not(Verdict::NotYetPossible),
        why: "",
    },
    Row {
        paper: "pftree",
        id: "E12",
        place: "Fig. 9",
        what: "YCSB A and D, up to 32 threads",
        figure: "up to 2 times all",
        needs: &["pftree", "roart", "p-art", "bztree", "fast-fair"],
        lacks: &[],
        rule: Rule::Not(Verdict::NotYetPossible),
        why: "",
    },
    Row {
        paper: "pftree",
        id: "E13",
        place: "Fig. 9",
        what: "YCSB B and C, 32 threads",
        figure: "1.2 to 7 times",
        needs: &["pftree", "roart", "p-art", "bztree", "fast-fair"],
        lacks: &[],
        rule: Rule::Not(Verdict::NotYetPossible),
        why: "",
    },
    Row {
        paper: "pftree",
        id: "E14",
        place: "Fig. 10",
        what: "recovery by number of keys",
        figure: "128 M: PFtree 21 s, ROART 19 s",
        needs: &["roart", "pftree"],
        lacks: &[],
        rule: Rule::Not(Verdict::NotYetPossible),
        why: "",
    },
    Row {
        paper: "pftree",
        id: "E15",
        place: "Fig. 11",
        what: "inserts by 8 threads, keys of 50, 150, 250 B, three ways to write back",
        figure: "long keys: chosen by size is best; small effect",
        needs: &["pftree"],
        lacks: &[],
        rule: Rule::Not(Verdict::NotYetPossible),
        why: "A machine whose caches are in the power-fail domain is needed, too.",
    },
];

/// NV-Tree's sizes of leaves.
const NV_SIZES: [&str; 4] = ["nv", "nv-1k", "nv-2k", "nv-4k"];
/// LB+-Tree's sizes of leaves.
const LB_SIZES: [&str; 4] = ["lb", "lb-512", "lb-768", "lb-1k"];
/// Isle-Tree's study: what all of its comparisons are about.
const ISLE_RIVALS: [&str; 3] = ["nv", "fp", "wb"];

fn fastest_at_every_size(evidence: &Evidence<'_>) -> Option<Judgement> {
    let mut sizes: Vec<u64> = evidence.0.measurements.iter().filter(|found| found.experiment == "isle-insert").map(|found| found.parameters.keys).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let (mut ours, mut best) = (Vec::new(), !sizes.is_empty());
    for keys in sizes {
        let time = |system| evidence.median_of(["isle-insert", "", "insert", metric::MEAN], system, |found| found.parameters.keys == keys);
        let isle = time("isle")?;
        let ratios = ISLE_RIVALS.iter().map(|system| Some((*system, time(system)? / isle))).collect::<Option<Vec<_>>>()?;
        best &= ratios.iter().all(|(_, ratio)| *ratio >= 1.0);
        let ratios: Vec<String> = ratios.iter().map(|(system, ratio)| format!("{system} {ratio:.2}")).collect();
        ours.push(format!("{keys} keys: {} x isle", ratios.join(", ")));
    }
    (!ours.is_empty()).then(|| Judgement::new(best, ours.join("; ")))
}

fn split_share(evidence: &Evidence<'_>) -> Option<Judgement> {
    let share = |system| evidence.median(["isle-splits", "", "insert", "split share"], system);
    let shares = ["isle", "nv", "fp", "wb"].into_iter().map(|system| Some((system, share(system)?))).collect::<Option<Vec<_>>>()?;
    let agree = shares.iter().filter(|(system, _)| *system != "nv").all(|(_, share)| (0.15..0.25).contains(share)) && shares[1].1 > shares[0].1;
    let ours: Vec<String> = shares.iter().map(|(system, share)| format!("{system} {:.0} %", share * 100.0)).collect();
    Some(Judgement::new(agree, ours.join(", ")))
}

fn inserts_for_a_split(evidence: &Evidence<'_>) -> Option<Judgement> {
    let splits = evidence.median(["isle-counts", "", "insert", metric::SPLITS], "isle")?;
    let capacity = registry::<u64, Hardware>().iter().find(|entry| entry.name == "isle")?.leaf_capacity;
    let inserts = 1.0 / splits;
    Some(Judgement::new((inserts - 32.0).abs() < 3.2 && capacity == 32, format!("{capacity} pairs, a division in {inserts:.1} inserts")))
}

fn larger_nodes(evidence: &Evidence<'_>) -> Option<Judgement> {
    let insert = |system| evidence.median(["isle-nodes", "", "insert", metric::MEAN], system);
    let search = |system| evidence.median(["isle-nodes", "", "search", metric::MEAN], system);
    let growth = [insert("isle-2k")? / insert("isle")?, insert("nv-2k")? / insert("nv")?, insert("wb-1k")? / insert("wb")?];
    let searches = search("isle")? / search("nv")?;
    let agree = growth[0] < 1.25 && growth[1] < 1.25 && growth[2] > 1.25 && searches < 1.0;
    let [isle, nv, wb] = growth;
    Some(Judgement::new(
        agree,
        format!("inserts: isle-2k {isle:.2} x isle, nv-2k {nv:.2} x nv, wb-1k {wb:.2} x wb; a search of isle takes {searches:.2} x nv's"),
    ))
}

fn gap_over_latency(evidence: &Evidence<'_>) -> Option<Judgement> {
    let time = |system, latency| evidence.median_of(["isle-latency", "", "insert", metric::MEAN], system, |found| found.parameters.write_latency_ns == latency);
    let gap = |latency| Some(time("fast-fair", latency)? / time("isle", latency)? - 1.0);
    let (low, high) = (gap(0)?, gap(600)?);
    let agree = (low - 0.2).abs() < 0.1 && (high - 0.708).abs() < 0.2;
    Some(Judgement::new(agree, format!("{:.1} % to {:.1} %", low * 100.0, high * 100.0)))
}

fn tail_latency(evidence: &Evidence<'_>) -> Option<Judgement> {
    let tail = |system| evidence.median_of(["isle-clients", "", "insert", metric::P99], system, |found| found.parameters.threads == 4);
    let isle = tail("server:isle")?;
    let below = [("NV", 0.331, tail("server:nv")?), ("FP", 0.277, tail("server:fp")?)].map(|(name, paper, other)| (name, paper, 1.0 - isle / other));
    let ours: Vec<String> = below.iter().map(|(name, _, below)| format!("{name} by {:.1} %", 100.0 * below)).collect();
    let agree = below.iter().all(|(_, paper, below)| *below > 0.0 && ((1.0 - below) / (1.0 - paper) - 1.0).abs() <= TIME_TOLERANCE);
    Some(Judgement::new(agree, format!("below {}", ours.join(", "))))
}

fn mixed_latency(evidence: &Evidence<'_>) -> Option<Judgement> {
    let mean = |system: &str, threads| {
        let what = ["isle-clients", "", "mixed", metric::MEAN];
        evidence.median_of(what, &format!("server:{system}"), |found| found.parameters.threads == threads)
    };
    let ratios = ["nv", "fp", "wb"].into_iter().map(|system| Some((system, mean(system, 4)? / mean("isle", 4)?))).collect::<Option<Vec<_>>>()?;
    let growth = ["isle", "nv", "fp", "wb"].into_iter().map(|system| Some(mean(system, 4)? / mean(system, 1)?)).collect::<Option<Vec<f64>>>()?;
    let agree = ratios.iter().all(|(_, ratio)| (ratio - 1.0).abs() <= TIME_TOLERANCE) && growth.iter().all(|growth| *growth > 1.0);
    let ours: Vec<String> = ratios.iter().map(|(system, ratio)| format!("{system} {ratio:.2} x isle")).collect();
    Some(Judgement::new(agree, format!("{}; four clients wait {:.1} times as long as one", ours.join(", "), growth[0])))
}

fn served(evidence: &Evidence<'_>) -> Option<Judgement> {
    let (mut agree, mut ours) = (true, Vec::new());
    for phase in ["insert", "search"] {
        let time = |system| evidence.median(["lb-server", "", phase, metric::MEAN], system);
        for (system, low, high) in [("server:wb-256", 1.05, 1.29), ("server:fp-256", 1.06, 1.22)] {
            let ratio = time(system)? / time("server:lb")?;
            agree &= ratio > 1.0 && ratio >= low * (1.0 - TIME_TOLERANCE) && ratio <= high * (1.0 + TIME_TOLERANCE);
            ours.push(format!("{phase}: {system} {ratio:.2} x"));
        }
    }
    Some(Judgement::new(agree, ours.join(", ")))
}

fn flushed_store(evidence: &Evidence<'_>) -> Option<Judgement> {
    let cost = |name| evidence.0.memory_cost("", name);
    let (flushed, store) = (cost(FLUSHED_LINE)?, cost(STORE)?);
    Some(
        Judgement::new(true, format!("a store with write-back and fence costs {:.1} times one without: {flushed:.0} and {store:.0} ns", flushed / store))
            .cannot_compare(),
    )
}

fn moved_entries(evidence: &Evidence<'_>) -> Option<Judgement> {
    let lines = |system| evidence.median(["lb-counts", "", "insert", "common lines flushed"], system);
    let all = LB_SIZES.into_iter().map(|system| Some((system, lines(system)?))).collect::<Option<Vec<_>>>()?;
    let with: Vec<String> = all.iter().map(|(system, lines)| format!("{system} {lines:.3}")).collect();
    let ours = format!("{} with moving; beside them wb-256 {:.3}, fp-256 {:.3}", with.join(", "), lines("wb-256")?, lines("fp-256")?);
    Some(Judgement::new(all.iter().all(|(_, lines)| *lines <= 1.31), ours))
}

/// Entries of a leaf of `lines` lines under one header: 2 bits and a byte each, two siblings of 8 B, two bits for both.
fn naive_header() -> Judgement {
    let (mut headers, mut left) = (Vec::new(), Vec::new());
    for blocks in [2.0, 3.0, 4.0_f64] {
        let entries = ((256.0 * blocks - 16.25) / 17.125).floor();
        let header = (0.25 + 1.125 * entries).ceil();
        headers.push(header);
        left.push(((64.0 - header) / 16.0).floor().max(0.0));
    }
    let agree = headers == [32.0, 49.0, 66.0] && left == [2.0, 0.0, 0.0];
    let list = |numbers: &[f64]| numbers.iter().map(f64::to_string).collect::<Vec<_>>().join(", ");
    Judgement::new(agree, format!("{} B; {} slots", list(&headers), list(&left)))
}

fn metadata_share() -> Judgement {
    let capacity = registry::<u64, Hardware>().iter().find(|entry| entry.name == "lb").map_or(0, |entry| entry.leaf_capacity);
    let share = 1.0 - capacity as f64 * 16.0 / 256.0;
    let others = [2.0, 3.0, 4.0_f64].map(|blocks| 100.0 * (blocks - 1.0) * 16.0 / (256.0 * blocks));
    let [two, three, four] = others.map(|share| format!("{share:.1}"));
    Judgement::new((share - 0.125).abs() < 1e-9 && others.iter().all(|share| *share < 6.25), format!("{:.2} %; {two}, {three}, {four} %", share * 100.0))
}

fn two_threads(evidence: &Evidence<'_>) -> Option<Judgement> {
    let of = &[("wb-256", 1.17, 1.3), ("fp-256", 1.22, 1.38)];
    let ratios = evidence.ratios(["lb-threads", "70 %", "insert", metric::MEAN], "lb", of, TIME_TOLERANCE)?;
    let rate = |experiment| evidence.median([experiment, "70 %", "insert", metric::THROUGHPUT], "lb");
    let doubled = rate("lb-threads")? / rate("lb-insert")?;
    let agree = ratios.verdict == Verdict::Agree && doubled >= 1.7;
    Some(Judgement { why: ratios.why, ..Judgement::new(agree, format!("{}; lb with two threads {doubled:.2} x one", ratios.ours)) })
}

fn overall_range(evidence: &Evidence<'_>) -> Option<Judgement> {
    let (mut agree, mut ours) = (true, Vec::new());
    for (system, low, high) in [("wb-256", 1.20, 2.92), ("fp-256", 1.12, 2.45)] {
        let ratio = |workload| {
            let time = |system| evidence.median(["lb-insert", workload, "insert", metric::MEAN], system);
            Some(time(system)? / time("lb")?)
        };
        let ratios = ["70 %", "100 %", "dense"].into_iter().map(ratio).collect::<Option<Vec<f64>>>()?;
        let (least, most) = (ratios.iter().copied().fold(f64::INFINITY, f64::min), ratios.iter().copied().fold(0.0, f64::max));
        agree &= (least / low - 1.0).abs() <= TIME_TOLERANCE && (most / high - 1.0).abs() <= TIME_TOLERANCE;
        ours.push(format!("{least:.2} to {most:.2} x {system}"));
    }
    Some(Judgement::new(agree, ours.join(", ")))
}

fn leaf_sizes(evidence: &Evidence<'_>) -> Option<Judgement> {
    let (mut agree, mut ours) = (true, Vec::new());
    for (workload, wanted) in [("70 %", "lb-512"), ("100 %", "lb"), ("dense", "lb")] {
        let time = |system| evidence.median(["lb-nodes", workload, "insert", metric::MEAN], system);
        let all = ["lb", "lb-512", "lb-768", "lb-1k", "wb-256", "wb-1k", "fp-256", "fp-1k"];
        let times = all.into_iter().map(|system| Some((system, time(system)?))).collect::<Option<Vec<_>>>()?;
        let best = times.iter().min_by(|one, other| one.1.total_cmp(&other.1))?;
        agree &= best.0 == wanted;
        ours.push(format!("{workload}: {} is best, lb-1k takes {:.2} x lb", best.0, time("lb-1k")? / time("lb")?));
    }
    Some(Judgement::new(agree, ours.join("; ")))
}

fn similar_reads(evidence: &Evidence<'_>) -> Option<Judgement> {
    let (mut agree, mut ours) = (true, Vec::new());
    for phase in ["search", "delete"] {
        for system in ["wb-256", "fp-256"] {
            let ratio = evidence.median(["lb-reads", "", phase, metric::MEAN], system)? / evidence.median(["lb-reads", "", phase, metric::MEAN], "lb")?;
            agree &= (ratio - 1.0).abs() <= TIME_TOLERANCE;
            ours.push(format!("{phase}: {system} {ratio:.2} x lb"));
        }
    }
    Some(Judgement::new(agree, ours.join(", ")))
}

fn rebuild_by_size(evidence: &Evidence<'_>) -> Option<Judgement> {
    let time = |system| evidence.median(["lb-rebuild", "", "reopen", metric::RECOVERY], system);
    let times = LB_SIZES.into_iter().map(time).collect::<Option<Vec<f64>>>()?;
    let ours: Vec<String> = times.iter().map(|time| format!("{:.1}", time * 1e3)).collect();
    Some(Judgement::new(times.windows(2).all(|pair| pair[1] <= pair[0] * 1.05), format!("{} ms", ours.join(", "))))
}

fn rebuild_by_threads(evidence: &Evidence<'_>) -> Option<Judgement> {
    let time = |threads| evidence.median_of(["lb-rebuild", "", "reopen", metric::RECOVERY], "lb", |found| found.parameters.threads == threads);
    let (one, two) = (time(1)?, time(2)?);
    Some(Judgement::new(two < one, format!("{:.1} ms with one thread, {:.1} with two", one * 1e3, two * 1e3)).cannot_compare())
}

fn larger_is_faster(evidence: &Evidence<'_>) -> Option<Judgement> {
    let (mut agree, mut ours) = (true, Vec::new());
    for phase in ["update", "delete"] {
        let time = |system| evidence.median(["nv-nodes", "", phase, metric::MEAN], system);
        let times = NV_SIZES.into_iter().map(time).collect::<Option<Vec<f64>>>()?;
        agree &= times[3] < times[0];
        let times: Vec<String> = times.iter().map(|time| format!("{time:.0}")).collect();
        ours.push(format!("{phase}: {} ns at 0.5, 1, 2, 4 KiB", times.join(", ")));
    }
    Some(Judgement::new(agree, ours.join("; ")))
}

fn fewer_splits(evidence: &Evidence<'_>) -> Option<Judgement> {
    let splits = |system| evidence.median(["nv-counts", "", "insert", metric::SPLITS], system);
    let all = NV_SIZES.into_iter().map(splits).collect::<Option<Vec<f64>>>()?;
    let ours: Vec<String> = all.iter().map(|splits| format!("{:.1}", splits * 1e3)).collect();
    Some(Judgement::new(all.windows(2).all(|pair| pair[1] < pair[0]), format!("{} of 1,000 inserts at 0.5, 1, 2, 4 KiB", ours.join(", "))))
}

fn slower_media(evidence: &Evidence<'_>) -> Option<Judgement> {
    let time = |latency| evidence.median_of(["nv-media", "", "insert", metric::MEAN], "nv-4k", |found| found.parameters.write_latency_ns == latency);
    let slower = |latency| Some(100.0 * (time(latency)? / time(0)? - 1.0));
    let (low, high) = (slower(50)?, slower(180)?);
    Some(Judgement::new(
        [(low, 1.05), (high, 3.06)].iter().all(|(slower, paper)| *slower > 0.0 && ((1.0 + slower / 100.0) / paper - 1.0).abs() < TIME_TOLERANCE),
        format!("nv-4k {low:.0} and {high:.0} %"),
    ))
}

fn write_back_threshold() -> Judgement {
    Judgement::new(true, format!("{} B", Hardware::EADR_LINES_KEPT * everleaf_pmem::LINE)).cannot_compare()
}

fn rebuild_share(evidence: &Evidence<'_>) -> Option<Judgement> {
    let share = |system| evidence.median(["nv-nodes", "", "insert", metric::REBUILD_SHARE], system);
    let all = NV_SIZES.into_iter().map(share).collect::<Option<Vec<f64>>>()?;
    let ours: Vec<String> = all.iter().map(|share| format!("{:.2}", share * 100.0)).collect();
    Some(Judgement::new(all.iter().all(|share| *share < 0.01), format!("{} % at 0.5, 1, 2, 4 KiB", ours.join(", "))))
}

fn rebuild_count(evidence: &Evidence<'_>) -> Option<Judgement> {
    let what = ["nv-counts", "", "insert", metric::REBUILDS];
    let all = NV_SIZES.into_iter().map(|system| evidence.median(what, system)).collect::<Option<Vec<f64>>>()?;
    let times: Vec<String> = all.iter().map(|times| format!("{times:.0}")).collect();
    let keys = evidence.0.measurements.iter().find(|found| found.experiment == "nv-counts")?.parameters.keys;
    Some(Judgement::new(true, format!("{} times in {keys} inserts, at 0.5, 1, 2, 4 KiB", times.join(", "))).cannot_compare())
}

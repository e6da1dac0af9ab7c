//! The claims: one row each, in the order of the papers.

use super::evidence::{Judgement, Wanted};
use super::experiments::STRETCHES;
use super::rules::{self, NV_STUDY};
use super::{COUNT_TOLERANCE, Row, Rule, TIME_TOLERANCE};
use crate::result::{Verdict, metric};
use everleaf_pmem::{Hardware, LINE};

/// Every claim.
pub(super) const ROWS: &[Row] = &[
    Row {
        id: "A1",
        place: "abstract, Fig. 7a",
        what: "insert 10 M keys: time above that of Isle-Tree",
        figure: "NV 11.6 %, FP 41.0 %, wB 124.3 %, FAST-FAIR 55.0 %, Circ 49.1 %",
        needs: &["isle", "nv", "fp-published", "wb", "fast-fair", "circ"],
        rule: Rule::By(&["isle-insert"], rules::slower_inserts),
        why: "Here a line adds 300 ns, paid at the next fence once its write-back is over. So trees differ by the lines that they flush (A3), and by fences, \
               each of which waits for a write-back in full: 1 in Isle-Tree, 2 in NV-Tree, 3 in FPTree and wB+-Tree. Without latency (isle-latency at 0 ns) \
               write-backs go on beside what follows. FPTree is judged as its paper has it; ours, fp, spares a line and a fence (A4). NV-Tree flushes 2.43 in \
               all, Isle-Tree 2.77, as it writes both leaves of a division in full, 17 lines: what NV-Tree loses by its second fence it wins back by them. \
               Without isle-all, which is not here yet.",
    },
    Row {
        id: "A2",
        place: "Fig. 7a",
        what: "insert 1, 10, 100 M keys",
        figure: "Isle-Tree is the fastest at every size",
        needs: &["isle", "nv", "fp-published", "wb", "fast-fair", "circ"],
        rule: Rule::By(&["isle-insert"], rules::fastest_at_every_size),
        why: "As in A1, at each size. Without isle-all, which is not here yet.",
    },
    Row {
        id: "A3",
        place: "Fig. 7b",
        what: "lines flushed by inserts of 10 M keys, above those of Isle-Tree",
        figure: "FAST-FAIR 109.2 %, Circ 53.2 %, FP 44.0 %, wB 2.6 times, NV about equal",
        needs: &["isle", "nv", "fp-published", "wb", "fast-fair", "circ"],
        rule: Rule::Ratios {
            what: ["isle-counts", "", "insert", metric::LINES_FLUSHED],
            base: "isle",
            of: &[("nv", 1.0, 1.0), ("fp-published", 1.44, 1.44), ("wb", 2.6, 2.6), ("fast-fair", 2.092, 2.092), ("circ", 1.532, 1.532)],
            tolerance: COUNT_TOLERANCE,
        },
        why: "Ours are right for what is written here. FPTree flushes 3 lines an insert, as its paper has it, and 11 more to divide a leaf: 1.29 times as many \
               as Isle-Tree, whose own divisions weigh more here (A7). Ours, fp, which flushes fingerprint and bitmap at once, comes to 0.93. wB+-Tree flushes \
               4 lines an insert, as its protocol has it, and 12 more to divide a leaf: 8 of the new leaf, bitmap and slot array of the old one, and the one \
               line of its log twice, when it is recorded and when it is cleared. The paper's figure leaves over 60 for each division: whole nodes that are \
               logged, and inner nodes that persist. Isle-Tree writes both leaves of a division in full, 17 lines; NV-Tree has the same 2 lines an insert, and \
               writes only those lines of new leaves that hold something, 11 for a division.",
    },
    Row {
        id: "A4",
        place: "V-B",
        what: "lines flushed by an insert that divides no leaf",
        figure: "Isle 2, wB at least 4, FP one more than Isle",
        needs: &["isle", "wb", "fp-published"],
        rule: Rule::Values {
            what: ["isle-counts", "", "insert", "common lines flushed"],
            of: &[("isle", 2.0, 2.0), ("wb", 4.0, 8.0), ("fp-published", 3.0, 3.0)],
            tolerance: COUNT_TOLERANCE,
        },
        why: "FPTree's third flush is that of the fingerprint before the bitmap. They share a line, whose order of stores is enough: fp, beside it in \
               isle-counts, flushes them together, 2 lines, and the crash checker finds nothing.",
    },
    Row {
        id: "A5",
        place: "Fig. 7c",
        what: "search 10 M keys: time above that of Isle-Tree",
        figure: "NV 37.0 %, FP 18.9 %, wB 23.0 %, Circ 18.3 %; FAST-FAIR comparable",
        needs: &["isle", "nv", "fp-published", "wb", "fast-fair", "circ"],
        rule: Rule::Ratios {
            what: ["isle-search", "", "search", metric::MEAN],
            base: "isle",
            of: &[("nv", 1.37, 1.37), ("fp-published", 1.189, 1.189), ("wb", 1.23, 1.23), ("fast-fair", 1.0, 1.0), ("circ", 1.183, 1.183)],
            tolerance: TIME_TOLERANCE,
        },
        why: "Lookups flush nothing, so no latency is added to them. Isle, FP and wB have the same router in DRAM here, which takes most of a lookup, with \
               shortcuts past its upper nodes, which are Ever's and which no paper has; NV's has none, and stands beside isle-plain, which goes down from \
               the root as well. In the paper each has its own router. Isle-Tree and NV-Tree both compare all heads of their 512 B by vectors, without a \
               branch for each: so it costs NV-Tree nothing that its elements are not sorted, which is what the paper finds slow. FPTree reads the line of \
               fingerprints and that of one entry, where these read seven or eight lines. Without isle-all, which is not here yet.",
    },
    Row {
        id: "A6",
        place: "Fig. 8a",
        what: "share of the time of inserts that is spent in those that divide a leaf",
        figure: "about 20 %; more for NV-Tree, which builds inner nodes anew",
        needs: &["isle", "nv", "fp-published", "wb", "fast-fair", "circ"],
        rule: Rule::By(&["isle-splits"], rules::split_share),
        why: "The whole time of such an insert counts, its descent included, and it goes by the lines that are flushed: 17 in Isle-Tree, 14 in FPTree, 16 in \
               wB+-Tree, where other inserts flush 3 and 4 lines instead of 2, and 11 in NV-Tree, the fewest. To build inner nodes anew does not make up for \
               that: it takes hardly any of the time of all inserts (D20).",
    },
    Row {
        id: "A7",
        place: "V-B",
        what: "a leaf of 512 B: pairs in it, and inserts for each division",
        figure: "at most 32 pairs, a division in about 32 inserts",
        needs: &["isle"],
        rule: Rule::By(&["isle-counts"], rules::inserts_for_a_split),
        why: "The paper divides 512 B by 16 B, and forgets the header, and that a division leaves two leaves half full: at random keys a leaf of 28 entries is \
               divided every 28 ln 2 = 19.4 inserts.",
    },
    Row {
        id: "A8",
        place: "Fig. 8b",
        what: "nodes of 512 B, 1 and 2 KiB: insert and search 10 M keys",
        figure: "inserts of NV and Isle stay flat, those of wB, FAST-FAIR and Circ degrade; Isle searches faster than NV, and in larger \
                 nodes comparably to FAST-FAIR and Circ",
        needs: &["isle", "isle-1k", "isle-2k", "nv", "nv-1k", "nv-2k", "wb", "wb-1k", "fast-fair", "fast-fair-2k", "circ", "circ-2k"],
        rule: Rule::By(&["isle-nodes"], rules::larger_nodes),
        why: "The slot array of wB+-Tree is one line whatever the size of the leaf, so an insert flushes 4 lines in both; to shift it is a matter of some \
               words; and leaves of 1 KiB are divided half as often, by 20 lines instead of 12. One word of bitmap tells of 63 entries, so there are none of 2 \
               KiB. Isle-Tree's and NV-Tree's leaves are searched alike (A5): all heads are compared. What lies between the two is the way to the leaf: \
               Isle-Tree's begins at a shortcut past the upper nodes, NV-Tree's at the root, as that of isle-plain does. Comparable means within a quarter, at \
               2 KiB. There are half as many keys as in A5, so that more of what is read is in the cache, and the way down weighs more.",
    },
    Row {
        id: "A9",
        place: "Fig. 8c",
        what: "insert 10 M keys at 0 to 600 ns of write latency",
        figure: "the gap between FAST-FAIR and Isle grows from 20.0 % to 70.8 %",
        needs: &["fast-fair"],
        rule: Rule::By(&["isle-latency"], rules::gap_over_latency),
        why: "What is there of the others is measured in isle-latency: each line adds so many nanoseconds, paid at the next fence, which then waits for the \
               write-back itself, too. Without latency that goes on beside what follows, so the time at 0 ns lies below the line through the others.",
    },
    Row {
        id: "A10",
        place: "abstract, Fig. 9a",
        what: "YCSB's load of 1 M string keys, 4 clients: 99th percentile of the latency, Isle-Tree below the others",
        figure: "by NV 33.1 %, FP 27.7 %, FAST-FAIR 36.2 %, Circ 22.4 %",
        needs: &["isle", "nv", "fp", "fast-fair", "circ"],
        rule: Rule::By(&["isle-clients"], rules::tail_latency),
        why: "The tree takes a small part of such a request, whichever it is: the rest is the socket, and waiting for a processor, as four clients and four \
               threads of the server share two cores here; there they have four. So the trees do not show. FPTree is ours, with 2 flushes: that of its paper \
               takes integers alone.",
    },
    Row {
        id: "A11",
        place: "Fig. 9b, 9c",
        what: "YCSB: half searches, half updates of 1 M keys",
        figure: "Isle similar to the others or slightly better; latency grows with the clients for all",
        needs: &["isle", "nv", "fp", "fast-fair", "circ"],
        rule: Rule::By(&["isle-clients"], rules::mixed_latency),
        why: "Judged are the 99th percentiles of lookups and of updates, as there, by YCSB's law; similar means within a quarter, with 4 clients, and growth \
               is from 1 client to 8. FPTree is ours, as in A10. The tree takes a small part of a request. With a single client it and its thread of the \
               server wait for each other, so both cores sleep between two requests, and to wake them takes longer than all else; with more threads than \
               cores a request waits until one is free, which is what a 99th percentile sees.",
    },
    Row {
        id: "A12",
        place: "Fig. 1, 2",
        what: "one insert and one search in a node of four lines, step by step",
        figure: "sorted: 4 pairs moved, 2 lines written; unsorted: 1 line; a search: 4 comparisons",
        needs: &["isle", "fast-fair"],
        rule: Rule::Not(Verdict::CannotCompare),
        why: "Comparisons are not counted: Isle-Tree's heads are compared all at once here, by vectors, and FAST-FAIR's one after the other, as \
               there. What a change writes is told for all inserts by A3.",
    },
    Row {
        id: "A13",
        place: "III-B",
        what: "lines flushed by the worst insert",
        figure: "FAST-FAIR all of the node, Circ half of them",
        needs: &["fast-fair", "circ"],
        rule: Rule::Values {
            what: ["isle-counts", "", "insert", "common lines flushed at most"],
            of: &[("fast-fair", 7.0, 7.0), ("circ", 3.0, 4.0)],
            tolerance: COUNT_TOLERANCE,
        },
        why: "Inserts that divide no node of 512 B, which has seven lines of entries. Half of Circ-Tree's are 14: four lines, or \
               five where the first of them is the last of its line; and one is the header.",
    },
    Row {
        id: "B1",
        place: "2.1",
        what: "3DXP memory beside DRAM",
        figure: "reads 2 to 3 times slower; clwb and sfence make writes up to 10 times slower; units of 256 B",
        needs: &[],
        rule: Rule::By(&[], rules::flushed_store),
        why: "The memory here is DRAM, so what is compared is a store with and without write-back; there it is 3DXP.",
    },
    Row {
        id: "B2",
        place: "Theorem 3.5, Fig. 8",
        what: "lines written by an insert into a leaf that is in its stable state, without and with the moving of entries",
        figure: "1.77 and 1.31 on average",
        needs: &["lb"],
        rule: Rule::By(&["lb-counts"], rules::moved_entries),
        why: "Theorem 3.5 promises at most 1.31 with moving, Theorem 3.6 the same in larger leaves: the trees are judged by that, within a tenth. There is \
               no tree without moving here. So the slots of a leaf alone are played, 3 of 14 beside the header, from the paper's four leaves behind a \
               division until they are full, with moving and without: that is the theorem recomputed, with its worst leaves for the one and its best for the \
               other.",
    },
    Row {
        id: "B3",
        place: "3.4",
        what: "one header in leaves of 512, 768 and 1024 B: bytes of it, and slots left in its line",
        figure: "32, 49, 66 B; 2, 0, 0 slots",
        needs: &[],
        rule: Rule::Arithmetic(|| rules::naive_header().cannot_compare()),
        why: "The paper's arithmetic once more, not a measurement: 1 bit and 1 byte an entry, a lock bit, one for the sibling, two siblings of 8 B at the end.",
    },
    Row {
        id: "B4",
        place: "3.5",
        what: "share of metadata in a leaf",
        figure: "12.5 %; the second header of larger leaves takes less than 6.25 %",
        needs: &["lb"],
        rule: Rule::Arithmetic(rules::metadata_share),
        why: "14 entries of 16 B in 256 B; of m times 256 B, all but the first have another header of 16 B.",
    },
    Row {
        id: "B5",
        place: "Fig. 10",
        what: "skip lists in DRAM, in persistent memory, divided between both: lookup, insert, delete",
        figure: "divided is about 1.5 times as fast as persistent",
        needs: &["skip"],
        rule: Rule::Not(Verdict::CannotCompare),
        why: "The divided list is skip, whose writes persist; the figure's three lists write nothing back, and differ in whether nodes and towers lie in DRAM \
               or in 3DXP, which are both DRAM here.",
    },
    Row {
        id: "B6",
        place: "Fig. 11a",
        what: "50 to 300 thousand random inserts, leaves 70 % full, one thread: LB+-Tree faster by",
        figure: "1.20 to 1.24 x wB, 1.12 to 1.21 x FP",
        needs: &["lb", "wb-256", "fp-256"],
        rule: Rule::By(&["lb-insert"], rules::random_inserts),
        why: "The order is the paper's: LB+-Tree flushes 1.3 lines an insert, FPTree 2, wB+-Tree 4, with as many fences or one less. There 2 billion keys \
               lie on 3DXP, and the descent alone takes 823 ns (B15), where a whole lookup takes a third of that here (lb-reads), since all three have \
               shortcuts past the upper nodes of the router, which the paper's have not: so what is flushed weighs more here, and most in wB+-Tree. \
               Leaves of 256 B are there of our FPTree alone, as the registry has fp-published, which flushes 3 (A4), with leaves of 512 B only. Each stretch \
               of inserts, of three, is judged.",
    },
    Row {
        id: "B7",
        place: "Fig. 11b",
        what: "the same, leaves 100 % full",
        figure: "2.55 to 2.92 x wB, 2.31 to 2.45 x FP",
        needs: &["lb", "wb-256", "fp-256"],
        rule: Rule::By(&["lb-insert"], |evidence| {
            rules::added(evidence, "100 %", &STRETCHES, 1, &[("wb-256", 2.55, 2.92), ("fp-256", 2.31, 2.45)]).as_deref().map(Judgement::of)
        }),
        why: "Nearly every insert divides a leaf: 96 to 99 of 100, as they are few among many leaves, as there. That and the insert take 6.5 lines and 2.5 \
               fences in LB+-Tree, which needs no log, 10 and 6 in FPTree, 12 and 7 in wB+-Tree, where a log is one line that is flushed twice: less than \
               twice as many, so no ratio can be above 2 by the lines. To sort the leaf, to allocate, and to change the router takes the same time in all \
               three.",
    },
    Row {
        id: "B8",
        place: "Fig. 11c",
        what: "the same, ascending keys beyond all others",
        figure: "2.31 to 2.69 x wB, 2.22 to 2.33 x FP",
        needs: &["lb", "wb-256", "fp-256"],
        rule: Rule::By(&["lb-insert"], |evidence| {
            rules::added(evidence, "dense", &STRETCHES, 1, &[("wb-256", 2.31, 2.69), ("fp-256", 2.22, 2.33)]).as_deref().map(Judgement::of)
        }),
        why: "The order is the paper's. An ascending key goes to the leaf of the one before, whose lines stay in the cache here after a flush, so FPTree's \
               second line and fence cost less than there, where each flush of a line that has just been flushed waits for the device. The four lines and \
               three fences of wB+-Tree do not come as cheap.",
    },
    Row {
        id: "B9",
        place: "overall",
        what: "inserts by one thread: LB+-Tree faster by",
        figure: "1.20 to 2.92 x wB, 1.12 to 2.45 x FP",
        needs: &["lb", "wb-256", "fp-256"],
        rule: Rule::By(&["lb-insert"], rules::overall_range),
        why: "The least and the most of B6, B7 and B8, whose reasons are theirs: without divisions what is flushed weighs more here than there, in divisions \
               less, as a log is one line.",
    },
    Row {
        id: "B10",
        place: "Fig. 12a",
        what: "1 to 16 threads, leaves 70 % full: LB+-Tree faster by",
        figure: "1.17 to 1.30 x wB, 1.22 to 1.38 x FP; nearly linear",
        needs: &["lb", "wb-256", "fp-256"],
        rule: Rule::By(&["lb-insert"], rules::two_threads),
        why: "As B6, by the first stretch: the descent is shorter here, so the four lines and three fences of wB+-Tree weigh more. Two threads here; nearly \
               linear means at least 1.7 times as many with two, in the same rounds of one experiment.",
    },
    Row {
        id: "B11",
        place: "Fig. 12b",
        what: "the same, leaves 100 % full",
        figure: "2.35 to 2.69 x wB, 2.10 to 2.53 x FP",
        needs: &["lb", "wb-256", "fp-256"],
        rule: Rule::By(&["lb-insert"], |evidence| {
            rules::added(evidence, "100 %", &STRETCHES[..1], 2, &[("wb-256", 2.35, 2.69), ("fp-256", 2.1, 2.53)]).as_deref().map(Judgement::of)
        }),
        why: "As B7: by lines a division costs less than twice LB+-Tree's. Two threads here.",
    },
    Row {
        id: "B12",
        place: "Fig. 12c",
        what: "the same, ascending keys, a hot spot for each thread",
        figure: "1.90 to 2.38 x wB, 1.89 to 2.55 x FP",
        needs: &["lb", "wb-256", "fp-256"],
        rule: Rule::By(&["lb-insert"], |evidence| {
            rules::added(evidence, "dense", &STRETCHES[..1], 2, &[("wb-256", 1.9, 2.38), ("fp-256", 1.89, 2.55)]).as_deref().map(Judgement::of)
        }),
        why: "As B8. Two threads here, each with a run of ascending keys of its own.",
    },
    Row {
        id: "B13",
        place: "Fig. 13",
        what: "100 thousand inserts by size of the leaves, three cases",
        figure: "LB+ best everywhere; 512 B slightly best at 70 %; 256 B best at 100 % and for ascending keys",
        needs: &["lb", "lb-512", "lb-768", "lb-1k", "wb-256", "wb-1k", "fp-256", "fp-1k"],
        rule: Rule::By(&["lb-nodes"], rules::leaf_sizes),
        why: "Rivals are compared at equal sizes of leaves. Of full leaves nearly every insert divides one, so larger ones pay for it at once. What larger \
               leaves save is divisions, which come four times as rarely at 1 KiB, and of 21 lines instead of 6: 0.75 lines for each entry instead of 0.86, \
               and a quarter of the allocations. At random keys that comes with later inserts, which neither the paper nor this has; ascending keys fill one \
               leaf after the other, so there it comes at once, and larger leaves are faster. There the 4 m lines of a new leaf are written to 3DXP; \
               here they are written to DRAM, so they weigh less.",
    },
    Row {
        id: "B14",
        place: "Fig. 14",
        what: "50 to 300 thousand searches, and deletes, leaves 70 % full",
        figure: "all three similar",
        needs: &["lb", "wb-256", "fp-256"],
        rule: Rule::By(&["lb-reads"], rules::similar_reads),
        why: "Similar means within a quarter, of three stretches of lookups and one of removals, behind which nobody knows which keys are left. A removal \
               flushes 3 lines and fences 3 times in wB+-Tree: bit 0, the slot array, the bitmap, each durable before the next; one line in LB+-Tree and \
               FPTree: the bitmap. A search of wB+-Tree compares the heads of all entries, and leaves the slot array aside, whose binary search was slower: it \
               waits for all four lines of the leaf, the others for two, that of the fingerprints and that of an entry, and takes more instructions (B15). \
               There the descent takes 823 ns beside which that is little; here, with shortcuts past the upper nodes, a whole lookup takes a third of that.",
    },
    Row {
        id: "B15",
        place: "4.2",
        what: "search within one leaf",
        figure: "27 ns for wB, 21 ns for FP and LB+; 823 ns from the root",
        needs: &["lb", "wb-256", "fp-256"],
        rule: Rule::By(&["lb-leaf"], rules::leaf_alone),
        why: "A tree of ten keys is one leaf. Ours are whole calls, so they have latch and router in them. wB+-Tree searches integers without its slot array: \
               it compares the heads of all entries, line by line, and looks which of these are in use. By callgrind that takes 75 instructions more than \
               LB+-Tree and 94 more than FPTree, which compare all fingerprints at once, and then one entry. The paper's goes through the slot array.",
    },
    Row {
        id: "B16",
        place: "Fig. 15a",
        what: "building the inner nodes of 2 billion keys again, by size of the leaves",
        figure: "the larger the leaves, the faster",
        needs: &["lb", "lb-512", "lb-768", "lb-1k"],
        rule: Rule::By(&["lb-rebuild"], rules::rebuild_by_size),
        why: "The whole of opening the file is measured here, which is more than inner nodes: mapping, finding out which blocks are in use. Fewer leaves mean \
               less of each.",
    },
    Row {
        id: "B17",
        place: "Fig. 15b",
        what: "the same with 1 to 16 threads",
        figure: "1.2 s to 0.1 s",
        needs: &["lb"],
        rule: Rule::By(&["lb-rebuild"], rules::rebuild_by_threads),
        why: "Two threads here, on fewer keys; and the list of leaves is followed by one of them, from all waypoints at once, before both recover the leaves.",
    },
    Row {
        id: "B18",
        place: "Fig. 16",
        what: "db_bench in X-Engine, one thread, LB+-Tree in place of a divided skip list",
        figure: "Get 1.31 to 1.54 x, sequential Put 1.44 to 1.80 x, random Put 1.46 to 1.83 x",
        needs: &["lb", "skip"],
        rule: Rule::By(&["lb-engine"], |evidence| rules::in_an_engine(evidence, 1, [(1.31, 1.54), (1.44, 1.8), (1.46, 1.83)])),
        why: "The store stands for X-Engine, which is not here. Its time on a skip list by that on LB+-Tree; keys of 8 B and values of 20 B in records, as \
               there, whose writing takes the same time on both. The paper's list is of up to 2 billion entries in 3DXP.",
    },
    Row {
        id: "B19",
        place: "Fig. 16",
        what: "the same with 16 threads",
        figure: "1.25 to 1.40 x, 1.35 to 1.64 x, 1.28 to 1.46 x",
        needs: &["lb", "skip"],
        rule: Rule::By(&["lb-engine"], |evidence| rules::in_an_engine(evidence, 2, [(1.25, 1.4), (1.35, 1.64), (1.28, 1.46)])),
        why: "As B18, with two threads: the machine has no more cores.",
    },
    Row {
        id: "B20",
        place: "Fig. 17",
        what: "Memcached on the trees, 50 M keys of 20 B",
        figure: "LB+ 1.05 to 1.29 x wB, 1.06 to 1.22 x FP",
        needs: &["lb", "wb-256", "fp-256"],
        rule: Rule::By(&["lb-server"], rules::served),
        why: "A server that speaks Redis's protocol, keys of 20 B, as many threads as clients, and a store that was filled in random order, so that leaves \
               are about 70 % full; it cannot be loaded in bulk, so 100 % is not measured. The round trip through the socket takes nearly all of the time, \
               the tree some hundredths, so the trees do not show.",
    },
    Row {
        id: "B21",
        place: "4.1",
        what: "lines of code to put it into another program",
        figure: "below 150",
        needs: &[],
        rule: Rule::Not(Verdict::CannotCompare),
        why: "A matter of their code, not of a measurement.",
    },
    Row {
        id: "C1",
        place: "search",
        what: "nodes of 4 KiB: searches faster with sentinels",
        figure: "FAST-FAIR 42.6 %, Circ 48.4 %",
        needs: &["fast-fair-4k", "fast-fair-s-4k", "circ-4k", "circ-s-4k"],
        rule: Rule::By(&["sentinels-nodes"], |evidence| {
            rules::led_by_sentinels(evidence, "sentinels-nodes", "search", metric::MEAN, [(0.574, 0.701), (0.516, 0.674)])
        }),
        why: "Time with sentinels by time without: less by 42.6 %, or as many more lookups. Ours lie beside the node's latch, which every search reads \
               anyway, so they take no room from entries; and in a node of 4 KiB without them half of 63 lines are read one after the other, as there.",
    },
    Row {
        id: "C2",
        place: "insert",
        what: "nodes of 4 KiB: inserts slower with sentinels",
        figure: "FAST-FAIR 4.0 %, Circ 6.5 %",
        needs: &["fast-fair-4k", "fast-fair-s-4k", "circ-4k", "circ-s-4k"],
        rule: Rule::By(&["sentinels-nodes"], |evidence| {
            rules::led_by_sentinels(evidence, "sentinels-nodes", "insert", metric::MEAN, [(1.04, 1.04), (1.065, 1.065)])
        }),
        why: "Time with sentinels by time without. Theirs are a part of the node, which has room for fewer entries, and is divided more often. Ours are \
               in DRAM, and what a search spares an insert spares, too: the way to its slot, and to the end of the entries.",
    },
    Row {
        id: "C3",
        place: "YCSB",
        what: "tail latency of searches with sentinels, nodes of 4 KiB",
        figure: "16.9 % and 13.0 % better",
        needs: &["fast-fair-4k", "fast-fair-s-4k", "circ-4k", "circ-s-4k"],
        rule: Rule::By(&["sentinels-tail"], |evidence| {
            rules::led_by_sentinels(evidence, "sentinels-tail", "mixed", metric::SEARCH_P99, [(0.831, 0.831), (0.87, 0.87)])
        }),
        why: "The 99th percentile of lookups with sentinels by that without, among as many updates, by YCSB's law. The slowest lookups are those of \
               nodes that are in no cache, of which sentinels spare most lines.",
    },
    Row {
        id: "C4",
        place: "design",
        what: "search for one of 13 keys",
        figure: "3 misses and 11 comparisons become 2 and 7",
        needs: &["fast-fair-4k", "fast-fair-s-4k", "circ-4k", "circ-s-4k"],
        rule: Rule::Not(Verdict::CannotCompare),
        why: "An example on slides, of four lines with the sentinels in the node. Comparisons are not counted. Here a search reads sentinels, beside the \
               latch in DRAM, and one line of entries, or two where the key would be the first of the next.",
    },
    Row {
        id: "C5",
        place: "design",
        what: "a range of 13 keys",
        figure: "3 misses and 9 comparisons become 2 misses and 3 keys of one line",
        needs: &["fast-fair-4k", "fast-fair-s-4k", "circ-4k", "circ-s-4k"],
        rule: Rule::Not(Verdict::CannotCompare),
        why: "An example on slides. Scans here take no upper bound: whoever visits says when to stop, and a leaf is read whole before it is visited, since \
               it may change meanwhile. So sentinels lead to the leaf, and not past lines of it.",
    },
    Row {
        id: "C6",
        place: "conclusion",
        what: "misses of the cache",
        figure: "fewer with sentinels",
        needs: &["fast-fair-4k", "fast-fair-s-4k", "circ-4k", "circ-s-4k"],
        rule: Rule::Not(Verdict::CannotCompare),
        why: "Misses are not counted where there are no counters of the processor, and a simulated cache of this size holds all keys that can be simulated \
               in time. C1 shows what they cost.",
    },
    Row {
        id: "D1",
        place: "Fig. 1a",
        what: "nodes of 4 KiB: trees beside themselves without flushes",
        figure: "LCB+ 16 times, CDDS 20 times slower",
        needs: &["lcb-4k", "cdds-4k"],
        rule: Rule::By(&["nv-volatile"], rules::without_flushes),
        why: "There a flush is mfence, clflush and mfence, which takes the line from the caches as well; here it is clwb, and LCB+-Tree waits for many lines \
               by one fence, CDDS for each entry that it shifts.",
    },
    Row {
        id: "D2",
        place: "2.4",
        what: "CDDS beside LCB+",
        figure: "11 to 32 % slower with fewer flushes",
        needs: &["lcb", "lcb-1k", "lcb-2k", "lcb-4k", "cdds", "cdds-1k", "cdds-2k", "cdds-4k"],
        rule: Rule::By(&["nv-nodes", "nv-counts"], rules::fewer_flushes_and_slower),
        why: "Fewer lines follow from the layouts; how much slower it is hangs on what waiting costs: CDDS waits for each entry that it shifts, 8 to 48 times \
               an insert, LCB+-Tree for all of an image at once, four times. There both wait for each line.",
    },
    Row {
        id: "D3",
        place: "Fig. 1b",
        what: "misses of the last cache by size of the node",
        figure: "in proportion, with flushes",
        needs: &["lcb", "cdds"],
        rule: Rule::Not(Verdict::CannotCompare),
        why: "Most of these are misses that flushes cause, and neither a clwb that keeps the line nor a simulated cache has them. D19 has the others, D1 what \
               flushes cost.",
    },
    Row {
        id: "D4",
        place: "Fig. 1c",
        what: "flushes of 1 M inserts of LCB+, nodes of 0.5, 1, 2, 4 KiB",
        figure: "14.8, 24.6, 44.7, 85.26 M",
        needs: &["lcb", "lcb-1k", "lcb-2k", "lcb-4k"],
        rule: Rule::Values {
            what: ["nv-counts", "", "insert", metric::LINES_FLUSHED],
            of: &[("lcb", 14.8, 14.8), ("lcb-1k", 24.6, 24.6), ("lcb-2k", 44.7, 44.7), ("lcb-4k", 85.26, 85.26)],
            tolerance: COUNT_TOLERANCE,
        },
        why: "As many as the image of a node, half of its entries, and what says that the image counts; splits included.",
    },
    Row {
        id: "D5",
        place: "Fig. 1c",
        what: "flushes of 1 M inserts of CDDS",
        figure: "12.1, 19.0, 34.2, 64.7 M",
        needs: &["cdds", "cdds-1k", "cdds-2k", "cdds-4k"],
        rule: Rule::Values {
            what: ["nv-counts", "", "insert", metric::LINES_FLUSHED],
            of: &[("cdds", 12.1, 12.1), ("cdds-1k", 19.0, 19.0), ("cdds-2k", 34.2, 34.2), ("cdds-4k", 64.7, 64.7)],
            tolerance: COUNT_TOLERANCE,
        },
        why: "Half of the entries, one flush each, and four lines besides. The paper's figures are those of entries of 24 B, of which 4 KiB hold 168 and \
               which cross lines; ours take 32 B, two a line, so that no crash leaves half of one, and 4 KiB have 126 slots.",
    },
    Row {
        id: "D6",
        place: "Fig. 1d",
        what: "what is flushed: sorting of leaves, rest of leaves, inner nodes",
        figure: "sorting 60 to 97 %, leaves over 90 %",
        needs: &["lcb", "cdds"],
        rule: Rule::Not(Verdict::CannotCompare),
        why: "Lines are counted, not what they were flushed for. Of an insert into CDDS all but three lines or so are entries that it shifts.",
    },
    Row {
        id: "D7",
        place: "introduction",
        what: "flushes of leaves, NV-Tree beside others",
        figure: "82 to 96 % fewer",
        needs: &["nv", "lcb", "cdds"],
        rule: Rule::Not(Verdict::CannotCompare),
        why: "Counted together with those of inner nodes, which are few: D9.",
    },
    Row {
        id: "D8",
        place: "Fig. 5a",
        what: "inserts by size of the node: NV-Tree faster than LCB+ and CDDS",
        figure: "up to 8 and 16 times; in Fig. 6 15.2 and 8, in the abstract 12 beside CDDS; NV-Tree itself faster with larger nodes",
        needs: NV_STUDY,
        rule: Rule::By(&["nv-nodes"], rules::larger_inserts),
        why: "The paper contradicts itself about a million inserts into nodes of 4 KiB, so its range over all places is asked for: 8 to 15.2 times LCB+, 8 to \
               16 times CDDS. D11, D12 and D29 are judged by the same ratios. The trend is NV-Tree's own. Larger leaves are divided more rarely, but that is \
               little: 2.43 lines an insert in all at 512 B, 2.37 at 4 KiB. And before it appends, an insert looks whether the key is there, among up to 254 \
               elements in 4 KiB. There a flushed line is mfence, clflush and mfence, beside which that hardly counts; here it is one clwb, and what is \
               flushed together is waited for once.",
    },
    Row {
        id: "D9",
        place: "Fig. 5b",
        what: "flushes of NV-Tree",
        figure: "80 to 97 % fewer than LCB+, 76 to 96 % fewer than CDDS",
        needs: NV_STUDY,
        rule: Rule::By(&["nv-counts"], rules::fewer_flushes),
        why: "As LCB+-Tree writes whole nodes for each insert, CDDS half of one, and NV-Tree an element; 5 to 40 and 4 to 29 times as many flushes is what \
               the paper's figures say. In 512 B, CDDS has 13 entries here: see D5.",
    },
    Row {
        id: "D10",
        place: "Fig. 5c",
        what: "cost of inner nodes that are kept consistent, too",
        figure: "measured there, no number in the text",
        needs: &["nv-consistent"],
        rule: Rule::Not(Verdict::NotYetPossible),
        why: "",
    },
    Row {
        id: "D11",
        place: "Fig. 6",
        what: "1, 10, 100 M inserts, 4 KiB: NV-Tree faster than LCB+",
        figure: "15.2, 6.3, 5.3 times",
        needs: &["nv-4k", "lcb-4k"],
        rule: Rule::By(&["nv-nodes"], rules::faster_inserts),
        why: "By the paper's figure for as many keys as the run has, 1, 10 or 100 M. It contradicts itself: for 1 M D8 has 8 times. There a flushed line is \
               mfence, clflush and mfence, which LCB+-Tree does 85 times an insert; here lines are flushed by clwb, and waited for together, by four fences.",
    },
    Row {
        id: "D12",
        place: "Fig. 6",
        what: "the same, CDDS",
        figure: "8, 9.7, 8.2 times",
        needs: &["nv-4k", "cdds-4k"],
        rule: Rule::By(&["nv-nodes"], rules::faster_inserts_than_cdds),
        why: "By the paper's figure for as many keys as the run has, 1, 10 or 100 M. It contradicts itself: for 1 M D8 has 16 times. CDDS shifts half of a \
               node for each insert and waits for each entry, NV-Tree waits twice; there both wait twice for each line.",
    },
    Row {
        id: "D13",
        place: "Fig. 7a",
        what: "updates of 1 M keys: NV-Tree faster",
        figure: "5.6 times LCB+, 8.5 times CDDS",
        needs: &["nv-4k", "lcb-4k", "cdds-4k"],
        rule: Rule::By(&["nv-nodes"], |evidence| {
            rules::largest_nodes(evidence, "update", &[("lcb-4k", 5.6, 5.6), ("cdds-4k", 8.5, 8.5)]).as_deref().map(Judgement::of)
        }),
        why: "The paper's numbers are for its best sizes. As D8: what is flushed together is waited for once here, which is most of what LCB+-Tree does.",
    },
    Row {
        id: "D14",
        place: "Fig. 7b",
        what: "deletes of 1 M keys",
        figure: "better than LCB+, below CDDS",
        needs: NV_STUDY,
        rule: Rule::By(&["nv-nodes"], |evidence| rules::beside_both(evidence, ["nv-nodes", "", "delete", metric::MEAN], Wanted::ABOVE, Wanted::BELOW)),
        why: "At each size of the node. A removal is two flushes and two waits in CDDS, as in NV-Tree: the end of the entry, and the version. But it looks \
               for the key in inner nodes that persist, and, in leaves that hold what is dead, entry by entry.",
    },
    Row {
        id: "D15",
        place: "Fig. 7a, 7b",
        what: "updates and deletes by size of the node",
        figure: "NV-Tree rises with it, the others fall",
        needs: NV_STUDY,
        rule: Rule::By(&["nv-nodes"], rules::larger_changes),
        why: "The others: updates of both, and removals of LCB+-Tree. Leaves are appended to, as there, and larger ones are divided more rarely. But an \
               update and a removal first look for the last element of their key, as there: from the end, through up to 254 elements in 4 KiB. There two \
               flushes of mfence, clflush and mfence take so long that this hardly counts; here a flushed line is one clwb.",
    },
    Row {
        id: "D16",
        place: "Fig. 7c",
        what: "searches",
        figure: "all three comparable",
        needs: NV_STUDY,
        rule: Rule::By(&["nv-nodes"], |evidence| rules::beside_both(evidence, ["nv-nodes", "", "search", metric::MEAN], rules::ALIKE, rules::ALIKE)),
        why: "Inner nodes of LCB+-Tree and CDDS are as large as their leaves, in persistent memory; LCB+-Tree searches nodes from the first entry on, CDDS by \
               halves, in twice the bytes. NV-Tree's inner nodes are in DRAM, and its leaf is searched from the end.",
    },
    Row {
        id: "D17",
        place: "Fig. 8",
        what: "1 M inserts and searches mixed, from 90/10 to 10/90",
        figure: "NV-Tree 6.6 times LCB+ and 10 times CDDS at 90/10, still best at 10/90",
        needs: &["nv-4k", "lcb-4k", "cdds-4k"],
        rule: Rule::By(&["nv-mixes"], rules::mixes),
        why: "With nodes of 4 KiB. As D8: what LCB+-Tree flushes together is waited for once here, and CDDS waits for each entry.",
    },
    Row {
        id: "D18",
        place: "Fig. 9a",
        what: "load instructions of inserts",
        figure: "44 to 90 % fewer than LCB+, 52 to 92 % fewer than CDDS; flat in the size of the node",
        needs: NV_STUDY,
        rule: Rule::By(&["nv-reads"], rules::flat_reads),
        why: "By callgrind. In NV-Tree, eight times the size is about a tenth more reads, as much as a count may be off, and not eight times as many, \
               as nothing is shifted. What there is more of is the look whether the key is there, among up to 254 elements in 4 KiB, which takes one read for \
               several of them; against that, fewer leaves are divided.",
    },
    Row {
        id: "D19",
        place: "Fig. 9b",
        what: "misses of the last cache",
        figure: "24 to 83 % fewer than LCB+, 39 to 90 % fewer than CDDS",
        needs: NV_STUDY,
        rule: Rule::By(&["nv-reads"], rules::fewer_misses),
        why: "In a simulated cache as large as that of the machine, and without the misses that flushes cause, which are most of the paper's. The trees of so \
               few keys fit into it, so what misses is what is touched first, and that is nothing to judge by.",
    },
    Row {
        id: "D20",
        place: "Table 2",
        what: "share of the time that is spent on building inner nodes anew",
        figure: "below 1 %",
        needs: &["nv", "nv-1k", "nv-2k", "nv-4k"],
        rule: Rule::By(&["nv-rebuild"], rules::rebuild_share),
        why: "With a tenth, one and four times as many keys. As there, inner nodes are built from the lowest of them, which lie side by side. Ours begin a \
               quarter full instead of with one leaf each, so they are built a few times more often, in less memory (D22).",
    },
    Row {
        id: "D21",
        place: "4.7",
        what: "how often 100 M inserts build them anew, by size of the node",
        figure: "7, 4, 3, 2 times",
        needs: &["nv", "nv-1k", "nv-2k", "nv-4k"],
        rule: Rule::By(&["nv-counts"], rules::rebuild_count),
        why: "Judged with as many inserts as there, `--scale 100000000`. Parents have room for 112 leaves here whatever the size of a leaf, and begin with \
               28; in the paper nodes of all levels have one size, and each leaf begins with a parent of its own, so larger nodes mean parents with more \
               room.",
    },
    Row {
        id: "D22",
        place: "3.2.5",
        what: "memory for that, 100 M keys, 4 KiB",
        figure: "1 MB, then 129 MB",
        needs: &["nv-4k"],
        rule: Rule::By(&["nv-counts"], rules::rebuild_bytes),
        why: "Both are right for what they build. Here a parent has room for 112 leaves in 2,368 B and begins with 28, so the first time comes when there are \
               112 leaves, and each takes 85 B for a leaf, and some nodes above. In the paper a parent is a node of 4 KiB for 256 leaves, and begins with \
               one: 257 nodes the first time, 1 MB, and 33,024 the second, 129 MB: as much DRAM as the leaves take of persistent memory, which is why ours \
               is another.",
    },
    Row {
        id: "D23",
        place: "Fig. 10a",
        what: "divisions of leaves by size of the node",
        figure: "fewer in larger nodes",
        needs: &["nv", "nv-1k", "nv-2k", "nv-4k"],
        rule: Rule::By(&["nv-counts"], rules::fewer_splits),
        why: "Twice the room, half the divisions, as there: leaves have room for 30, 62, 126 and 254 elements.",
    },
    Row {
        id: "D24",
        place: "Fig. 10b",
        what: "building inner nodes anew from the lowest of them instead of from leaves",
        figure: "22 to 47 % faster",
        needs: &["nv", "nv-1k", "nv-2k", "nv-4k"],
        rule: Rule::By(&["nv-reopen"], rules::rebuild_sources),
        why: "From the lowest inner nodes, separators are copied from nodes that lie side by side, each with 28 leaves or more, where the paper has a \
               parent for each leaf. From leaves they are built when a pool is opened after a crash: their links are followed, each to a line that no cache \
               has, and often to a page of the file that was not touched since it was mapped; the larger the leaves, the fewer of them share a page. What \
               else recovery does with each leaf is left aside.",
    },
    Row {
        id: "D25",
        place: "4.7",
        what: "crashes",
        figure: "some thousand cuts of power and of the process, all survived",
        needs: &["nv"],
        rule: Rule::By(&["nv-reopen"], rules::survived),
        why: "This is but a crash of the process, and a few times. Cuts of power are not sampled here but enumerated: `everleaf lab crash` recovers every \
               image that a crash can leave of short sequences of operations, NV-Tree's among them, and `cargo xtask kill` kills servers on each index at \
               random moments.",
    },
    Row {
        id: "D26",
        place: "Fig. 11a",
        what: "StatusUpdate on NV-Store and on Redis 2.8",
        figure: "up to 3.2 times both forms of Redis",
        needs: &["server:nv"],
        rule: Rule::By(&["nv-server"], rules::status_updates),
        why: "Ours is Everleaf's server with a store on NV-Tree, and Redis of today instead of 2.8, both with their data on tmpfs. What the paper calls \
               volatile is a Redis whose log is synchronised in a time interval, redis-everysec. A request is a round trip through a socket, which takes \
               nearly all of its time whoever serves: with one client it is that of waking two threads, and with two, threads of their own serve them here, \
               and one serves both there.",
    },
    Row {
        id: "D27",
        place: "Fig. 11b",
        what: "SessionStore on both",
        figure: "up to 4.8 times",
        needs: &["server:nv"],
        rule: Rule::By(&["nv-server"], rules::sessions),
        why: "As D26; half of the requests write, and so to the log, which both forms of Redis keep.",
    },
    Row {
        id: "D28",
        place: "Fig. 12",
        what: "inserts slowed down by media of 50 and 180 ns more, 4 KiB",
        figure: "NV 5 and 206 %, LCB+ 51 and 241 %, CDDS 87 and 281 %",
        needs: &["nv-4k", "lcb-4k", "cdds-4k"],
        rule: Rule::By(&["nv-media"], rules::slower_media),
        why: "The paper's two figures are at odds with each other: a delay before each write that costs 5 % with 50 ns costs 18 % with 180 ns, whatever the \
               number of writes, and 206 % with 180 ns means 57 % with 50 ns. Here each line that is flushed adds the delay, paid at the next fence: 2.37 \
               lines an insert, so 118 and 426 ns. Besides, each of the two fences waits for its write-back in full, which it does not without delay.",
    },
    Row {
        id: "D29",
        place: "Fig. 13",
        what: "the misses that flushes cause taken away, 4 KiB",
        figure: "7 times LCB+, 9 times CDDS",
        needs: &["nv-4k", "lcb-4k", "cdds-4k"],
        rule: Rule::By(&["nv-nodes"], rules::faster_inserts_without_misses),
        why: "Where clwb keeps the line in the caches, ours are without them in any case, and elsewhere this cannot be compared. The paper estimates them, and \
               contradicts itself about what they are taken from. Ours are the ratios of D8, D11 and D12, so these claims do not all hold anywhere.",
    },
    Row {
        id: "D30",
        place: "Table 1",
        what: "latencies of media",
        figure: "PCM writes 180 ns, STT-RAM 50 ns, flash 25 us, disks 3 ms",
        needs: &[],
        rule: Rule::Not(Verdict::CannotCompare),
        why: "Given by others, not measured there either; 50 and 180 ns are what D28 adds.",
    },
    Row {
        id: "E1",
        place: "abstract",
        what: "several threads: PFtree faster",
        figure: "up to 1.2 times radix trees, 1.1 to 7 times B+-trees",
        needs: &["pf", "fast-fair"],
        rule: Rule::By(&["pftree-micro", "pftree-mixes"], rules::faster_than_others),
        why: "Two threads; of B+-trees FAST-FAIR and BzTree, of radix trees ROART and P-ART. The paper's range is of all of its workloads. Of radix trees it \
               is asked that they are slower in each: 1.2 is the most that the abstract claims, and Fig. 7 of the paper itself has 1.28 and 1.48 for lookups.",
    },
    Row {
        id: "E2",
        place: "Fig. 2",
        what: "read and write amplification of ROART",
        figure: "large",
        needs: &["roart"],
        rule: Rule::Not(Verdict::CannotCompare),
        why: "What a module of Optane reads and writes only such a module counts; the lab has a model of its writes.",
    },
    Row {
        id: "E3",
        place: "Fig. 5a",
        what: "random writes by size, one thread: flushed and waited for, left in the cache, flushed without waiting",
        figure: "the last two equal below 128 B, the last better above 256 B",
        needs: &[],
        rule: Rule::Not(Verdict::NotYetPossible),
        why: "missing: a machine whose caches are in the power-fail domain (eADR); on others it would compare nothing.",
    },
    Row {
        id: "E4",
        place: "Fig. 5b",
        what: "the same, 8 threads",
        figure: "without waiting better above 64 B",
        needs: &[],
        rule: Rule::Not(Verdict::NotYetPossible),
        why: "missing: a machine whose caches are in the power-fail domain (eADR); on others it would compare nothing.",
    },
    Row {
        id: "E5",
        place: "Fig. 6a",
        what: "8 B by threads",
        figure: "equal below 12 threads",
        needs: &[],
        rule: Rule::Not(Verdict::NotYetPossible),
        why: "missing: a machine whose caches are in the power-fail domain (eADR); on others it would compare nothing.",
    },
    Row {
        id: "E6",
        place: "Fig. 6b",
        what: "256 B by threads",
        figure: "without waiting better from 2 threads on",
        needs: &[],
        rule: Rule::Not(Verdict::NotYetPossible),
        why: "missing: a machine whose caches are in the power-fail domain (eADR); on others it would compare nothing.",
    },
    Row {
        id: "E7",
        place: "Algorithm 1",
        what: "from how many bytes on lines are written back, where caches are durable",
        figure: "256 B",
        needs: &[],
        rule: Rule::Arithmetic(|| Judgement::new(true, format!("{} B", Hardware::EADR_LINES_KEPT * LINE)).cannot_compare()),
        why: "The domain `eadr` has the paper's threshold by its definition; that it is the best one was not measured, for want of such a machine.",
    },
    Row {
        id: "E8",
        place: "Fig. 7",
        what: "lookups by 4 threads, M/s",
        figure: "PFtree 2.708, ROART 2.118, P-ART 1.832",
        needs: &["pf", "fast-fair"],
        rule: Rule::By(&["pftree-micro"], rules::searches_alone),
        why: "Two threads. FAST-FAIR's and BzTree's figures are in a diagram alone: what the abstract says of B+-trees is asked for.",
    },
    Row {
        id: "E9",
        place: "Fig. 7",
        what: "inserts by 4 threads",
        figure: "PFtree 1.8 M/s, the best",
        needs: &["pf", "fast-fair"],
        rule: Rule::By(&["pftree-micro"], |evidence| rules::radix_gains(evidence, &rules::rivals(rules::of_trees(), Wanted::ABOVE), &["insert"], &[])),
        why: "As E8; of ROART and P-ART, that they are slower.",
    },
    Row {
        id: "E10",
        place: "Fig. 7",
        what: "update, remove, scan",
        figure: "PFtree best or better",
        needs: &["pf", "fast-fair"],
        rule: Rule::By(&["pftree-micro"], |evidence| {
            rules::radix_gains(evidence, &rules::rivals(Wanted::ABOVE, Wanted::ABOVE), &["update", "delete", "scan"], &[])
        }),
        why: "Two threads, where the paper has four; scans of 100 entries.",
    },
    Row {
        id: "E11",
        place: "Fig. 8",
        what: "from ROART to PFtree step by step",
        figure: "direct values: lookup 15 %, delete 11 % faster, ...",
        needs: &["roart", "pf"],
        rule: Rule::By(&["pftree-micro"], rules::all_steps_from_roart),
        why: "All steps at once: what lies between was not built. What the first step gains there is the least that is asked for; of others, a gain.",
    },
    Row {
        id: "E12",
        place: "Fig. 9",
        what: "YCSB A and D, up to 32 threads",
        figure: "up to 2 times all",
        needs: &["pf", "fast-fair"],
        rule: Rule::By(&["pftree-micro", "pftree-mixes"], rules::up_to_twice),
        why: "Two threads, where the paper has up to 32. The slowest is to be twice as slow. Its letters are not those of YCSB: A is half inserts, D all.",
    },
    Row {
        id: "E13",
        place: "Fig. 9",
        what: "YCSB B and C, 32 threads",
        figure: "1.2 to 7 times",
        needs: &["pf", "fast-fair"],
        rule: Rule::By(&["pftree-micro", "pftree-mixes"], rules::lookups_among_inserts),
        why: "Two threads, where the paper has 32. B is one insert among twenty operations, C lookups alone.",
    },
    Row {
        id: "E14",
        place: "Fig. 10",
        what: "recovery by number of keys",
        figure: "128 M: PFtree 21 s, ROART 19 s",
        needs: &["roart", "pf"],
        rule: Rule::Ratios {
            what: ["pftree-reopen", "", "reopen", metric::RECOVERY],
            base: "roart",
            of: &[("pf", 21.0 / 19.0, 21.0 / 19.0)],
            tolerance: TIME_TOLERANCE,
        },
        why: "With less keys by far, and two trees that read all of their records when they are opened: ROART's would do so later, when they are touched.",
    },
    Row {
        id: "E15",
        place: "Fig. 11",
        what: "inserts by 8 threads, keys of 50, 150, 250 B, three ways to write back",
        figure: "long keys: chosen by size is best; small effect",
        needs: &["pf"],
        rule: Rule::Not(Verdict::NotYetPossible),
        why: "A machine whose caches are in the power-fail domain is needed, too.",
    },
];

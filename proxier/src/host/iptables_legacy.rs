//! The tables of iptables-legacy. nf_tables neither lists nor changes them.

/// The programs of iptables-legacy, each with the file in which the kernel lists its tables in use.
const PROGRAMS: [(&str, &str); 2] = [
    ("iptables-legacy", "/proc/thread-self/net/ip_tables_names"),
    ("ip6tables-legacy", "/proc/thread-self/net/ip6_tables_names"),
];

/// A table of iptables-legacy that is in use.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LegacyTable {
    /// The program that changes it.
    pub(crate) program: &'static str,
    /// Its name: `filter`, `nat`.
    pub(crate) name: String,
}

/// Returns the tables in use in the network namespace of this thread.
pub(crate) fn legacy_tables() -> Vec<LegacyTable> {
    let tables = PROGRAMS.map(|(program, file)| {
        // A kernel without iptables-legacy lacks the file, and has no such table.
        let names = std::fs::read_to_string(file).unwrap_or_default();
        let table = |name: &str| LegacyTable {
            program,
            name: name.to_owned(),
        };
        names.lines().map(table).collect::<Vec<_>>()
    });
    tables.concat()
}

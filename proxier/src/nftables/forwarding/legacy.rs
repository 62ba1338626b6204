//! The tables of iptables-legacy, which nf_tables does not list.

/// The programs of iptables-legacy, each with the file in which the kernel lists its tables in use.
const PROGRAMS: [(&str, &str); 2] = [
    ("iptables-legacy", "/proc/thread-self/net/ip_tables_names"),
    ("ip6tables-legacy", "/proc/thread-self/net/ip6_tables_names"),
];

/// Returns the programs whose table `filter` is in use in this thread's network namespace.
pub(super) fn in_use() -> Vec<&'static str> {
    let is_in_use = |names: &str| {
        // A kernel without iptables-legacy lacks the file.
        let names = std::fs::read_to_string(names).unwrap_or_default();
        names.lines().any(|name| name == "filter")
    };
    PROGRAMS
        .into_iter()
        .filter_map(|(program, names)| is_in_use(names).then_some(program))
        .collect()
}

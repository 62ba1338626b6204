//! Chains that are not in nf_tables.

/// The programs of iptables-legacy, each with where the kernel names its tables in use.
const PROGRAMS: [(&str, &str); 2] = [
    ("iptables-legacy", "/proc/thread-self/net/ip_tables_names"),
    ("ip6tables-legacy", "/proc/thread-self/net/ip6_tables_names"),
];

/// The programs of iptables-legacy whose table `filter` is in use in this thread's network namespace.
/// What is in it can be neither read nor changed over netlink.
pub(super) fn in_use() -> Vec<&'static str> {
    let is_in_use = |names: &str| {
        // A kernel without iptables-legacy has no such file.
        let names = std::fs::read_to_string(names).unwrap_or_default();
        names.lines().any(|name| name == "filter")
    };
    PROGRAMS
        .into_iter()
        .filter_map(|(program, names)| is_in_use(names).then_some(program))
        .collect()
}

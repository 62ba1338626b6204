//! The names of the chains, tables and ipsets that kube-proxy creates, in all of its modes.
//!
//! Chains of other programs begin with `KUBE-` too, so a prefix is not enough: the kubelet's `KUBE-FIREWALL`,
//! `KUBE-KUBELET-CANARY`, `KUBE-IPTABLES-HINT` and, before Kubernetes 1.28, `KUBE-MARK-DROP`;
//! kube-router's `KUBE-ROUTER-..` and CRI-O's `KUBE-HP-..`.

use crate::cluster::model::Family;

/// A table of iptables and kube-proxy's chains in it.
struct TableNames {
    table: &'static str,
    /// Complete names.
    names: &'static [&'static str],
    /// Beginnings of names, each with a hash after it.
    begins: &'static [&'static str],
}

/// The chain that sets the masquerade bit. Old kubelets create it too, and plugins jump to it.
pub(super) const MARK_CHAIN: &str = "KUBE-MARK-MASQ";

/// The chain by which the iptables mode notices that its rules were flushed. The IPVS mode has none.
pub(super) const CANARY: &str = "KUBE-PROXY-CANARY";

/// The chain that only kubelets before 1.28 create. They maintain [`MARK_CHAIN`] as well.
pub(super) const KUBELET_CHAIN: &str = "KUBE-MARK-DROP";

/// The table of the nftables mode, in the families `ip` and `ip6`.
const OWN_TABLE: &str = "kube-proxy";

const TABLES: [TableNames; 3] = [
    TableNames {
        table: "nat",
        names: &[
            "KUBE-SERVICES",
            "KUBE-POSTROUTING",
            "KUBE-NODE-PORT",
            "KUBE-NODEPORTS",
            "KUBE-LOAD-BALANCER",
            CANARY,
            MARK_CHAIN,
        ],
        begins: &[
            "KUBE-SVC-",
            "KUBE-SVL-",
            "KUBE-SEP-",
            "KUBE-EXT-",
            "KUBE-FW-",
            "KUBE-XLB-",
        ],
    },
    TableNames {
        table: "filter",
        names: &[
            "KUBE-SERVICES",
            "KUBE-EXTERNAL-SERVICES",
            "KUBE-FORWARD",
            "KUBE-NODE-PORT",
            "KUBE-NODEPORTS",
            "KUBE-PROXY-FIREWALL",
            "KUBE-SOURCE-RANGES-FIREWALL",
            "KUBE-IPVS-FILTER",
            "KUBE-IPVS-OUT-FILTER",
            CANARY,
        ],
        begins: &[],
    },
    TableNames {
        table: "mangle",
        names: &[CANARY],
        begins: &[],
    },
];

/// The beginning of the names of ipsets of IPv6, in place of `KUBE-`.
const SIX: &str = "KUBE-6-";

/// The ipsets of IPv4.
const SETS: [&str; 17] = [
    "KUBE-LOOP-BACK",
    "KUBE-CLUSTER-IP",
    "KUBE-EXTERNAL-IP",
    "KUBE-EXTERNAL-IP-LOCAL",
    "KUBE-LOAD-BALANCER",
    "KUBE-LOAD-BALANCER-FW",
    "KUBE-LOAD-BALANCER-LOCAL",
    "KUBE-LOAD-BALANCER-SOURCE-IP",
    "KUBE-LOAD-BALANCER-SOURCE-CIDR",
    "KUBE-NODE-PORT-TCP",
    "KUBE-NODE-PORT-LOCAL-TCP",
    "KUBE-NODE-PORT-UDP",
    "KUBE-NODE-PORT-LOCAL-UDP",
    "KUBE-NODE-PORT-SCTP-HASH",
    "KUBE-NODE-PORT-LOCAL-SCTP-HASH",
    "KUBE-HEALTH-CHECK-NODE-PORT",
    "KUBE-IPVS-IPS",
];

/// The maximum length of an ipset's name (`IPSET_MAXNAMELEN` without its NUL). kube-proxy cuts two names.
const MAX_SET_NAME: usize = 31;

/// Returns whether kube-proxy creates a chain of this name in this table of iptables.
pub(super) fn is_chain(table: &str, name: &str) -> bool {
    TABLES.iter().any(|names| {
        names.table == table
            && (names.names.contains(&name)
                || names.begins.iter().any(|begin| name.starts_with(begin)))
    })
}

/// Returns whether kube-proxy's nftables mode creates this table.
pub(super) fn is_table(family: &str, name: &str) -> bool {
    name == OWN_TABLE && ["ip", "ip6"].contains(&family)
}

/// Returns whether kube-proxy creates an ipset of this name.
pub(super) fn is_set(name: &str) -> bool {
    SETS.iter().any(|set| {
        let six = set.replacen("KUBE-", SIX, 1);
        name == *set || name == &six[..six.len().min(MAX_SET_NAME)]
    })
}

/// Returns the family of one of kube-proxy's ipsets.
pub(super) fn family_of_set(name: &str) -> Family {
    match name.starts_with(SIX) {
        true => Family::V6,
        false => Family::V4,
    }
}

/// Returns an extended regular expression for kube-proxy's lines in the output of `iptables-save`.
///
/// Of the lines with [`MARK_CHAIN`], it matches only those that define the chain, because rules of other
/// programs jump to it. If there is such a rule, `iptables-restore` refuses the result and changes nothing.
pub(super) fn saved_lines() -> String {
    let mut names: Vec<String> = Vec::new();
    for table in &TABLES {
        let whole = table.names.iter().filter(|name| **name != MARK_CHAIN);
        names.extend(whole.map(|name| format!("{}( |$)", short(name))));
        names.extend(table.begins.iter().map(|begin| short(begin).to_owned()));
    }
    names.sort();
    names.dedup();
    format!("^(:|-A ){MARK_CHAIN} |KUBE-({})", names.join("|"))
}

fn short(name: &str) -> &str {
    name.strip_prefix("KUBE-").unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chains_of_the_kubelet_and_of_other_programs_are_not_kube_proxys() {
        for (table, name) in [
            ("filter", "KUBE-FIREWALL"),
            ("mangle", "KUBE-KUBELET-CANARY"),
            ("mangle", "KUBE-IPTABLES-HINT"),
            ("nat", "KUBE-MARK-DROP"),
            ("nat", "KUBE-HOSTPORTS"),
            ("nat", "KUBE-HP-ABCDEF"),
            ("filter", "KUBE-ROUTER-INPUT"),
            ("filter", "KUBE-SERVICES-OF-MINE"),
            ("nat", "POSTROUTING"),
            // kube-proxy has this chain in table filter only.
            ("nat", "KUBE-FORWARD"),
        ] {
            assert!(!is_chain(table, name), "{table} {name}");
        }
    }

    #[test]
    fn chains_of_all_modes_are_kube_proxys() {
        for (table, name) in [
            ("nat", "KUBE-SERVICES"),
            ("nat", "KUBE-MARK-MASQ"),
            ("nat", "KUBE-SEP-ABCDEFGHIJKLMNOP"),
            ("filter", "KUBE-IPVS-OUT-FILTER"),
            ("filter", "KUBE-SOURCE-RANGES-FIREWALL"),
            ("mangle", "KUBE-PROXY-CANARY"),
        ] {
            assert!(is_chain(table, name), "{table} {name}");
        }
        assert!(is_table("ip6", "kube-proxy") && !is_table("inet", "kube-proxy"));
    }

    #[test]
    fn the_sets_of_both_families_are_kube_proxys() {
        for name in [
            "KUBE-CLUSTER-IP",
            "KUBE-6-CLUSTER-IP",
            "KUBE-6-LOAD-BALANCER-SOURCE-CID",
            "KUBE-6-NODE-PORT-LOCAL-SCTP-HAS",
            "KUBE-6-LOAD-BALANCER-SOURCE-IP",
        ] {
            assert!(is_set(name), "{name}");
        }
        for name in [
            "KUBE-POD-SELECTOR",
            "KUBE-6-",
            "kube-cluster-ip",
            "KUBE-SRC-ABC",
        ] {
            assert!(!is_set(name), "{name}");
        }
    }

    #[test]
    fn the_expression_for_saved_lines_names_each_chain_once() {
        let expression = saved_lines();
        assert!(
            expression.starts_with("^(:|-A )KUBE-MARK-MASQ |KUBE-(EXT-|"),
            "{expression}"
        );
        assert_eq!(
            expression.matches("SERVICES( |$)").count(),
            2,
            "{expression}"
        );
    }
}

//! Other programs on the node that affect Services.
//!
//! A program is recognised by its *traces*: the network devices and the packet-filter chains that it
//! creates. [`Traces::read`] reads them, [`recognise`] is pure. The signatures are from the sources of
//! these programs, as `../shared/spec/neighbours.md` cites them.

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;

use serde::Serialize;

use crate::host::{self, ChainName, LegacyTable};

use crate::dataplane::ipvs::observed::LocalAddresses;
use crate::dataplane::ipvs::op::AddressForm;
use crate::plan::ServiceAddresses;

mod signature;

use signature::SIGNATURES;

/// The traces of other programs in one network namespace.
#[derive(Clone, Debug, Default)]
pub(crate) struct Traces {
    /// The names of all network devices.
    pub(crate) devices: BTreeSet<String>,
    /// All chains of nf_tables, also those of iptables-nft.
    pub(crate) chains: Vec<ChainName>,
    /// The tables of iptables-legacy in use; netlink shows none of their chains.
    pub(crate) legacy_tables: Vec<LegacyTable>,
    /// The programs that have a run-time directory.
    pub(crate) directories: Vec<&'static str>,
    /// The number of addresses on `kube-ipvs0`.
    pub(crate) dummy_addresses: usize,
}

/// A program beside ipvs-proxier; prints as one line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Neighbour {
    /// The name of the program.
    pub(crate) name: &'static str,
    /// The trace by which it was recognised.
    pub(crate) trace: String,
    /// The consequence for Services, and what to set.
    pub(crate) meaning: &'static str,
}

impl Traces {
    /// Reads the traces in the network namespace of this thread.
    ///
    /// `local` are the addresses that were found there.
    ///
    /// # Errors
    /// If the chains cannot be listed.
    pub(crate) fn read(local: &LocalAddresses) -> Result<Self, netlink::Error> {
        // `/proc/net` would show the network namespace of the main thread.
        let devices = std::fs::read_to_string("/proc/thread-self/net/dev");
        let has_directory = |signature: &&signature::Signature| {
            let directory = signature.directory;
            directory.is_some_and(|directory| Path::new(directory).is_dir())
        };
        let programs = SIGNATURES.iter().filter(has_directory);
        let leftovers = local.leftovers.iter();
        let on_device = leftovers.filter(|(_, form)| matches!(form, AddressForm::Address));
        Ok(Self {
            devices: device_names(&devices.unwrap_or_default()),
            chains: host::list_chains()?,
            legacy_tables: host::legacy_tables(),
            directories: programs.map(|signature| signature.name).collect(),
            dummy_addresses: on_device.count(),
        })
    }
}

/// Parses `/proc/net/dev`: two lines of headings, then `NAME: COUNTERS` for each device.
fn device_names(text: &str) -> BTreeSet<String> {
    let names = text.lines().skip(2).filter_map(|line| line.split_once(':'));
    names.map(|(name, _)| name.trim().to_owned()).collect()
}

/// Returns the programs that left `traces`, in the order of [`SIGNATURES`].
///
/// `form` is how service addresses are local.
pub(crate) fn recognise(traces: &Traces, form: ServiceAddresses) -> Vec<Neighbour> {
    let found = SIGNATURES.iter().filter_map(|signature| {
        Some(Neighbour {
            name: signature.name,
            trace: signature.find(traces)?,
            meaning: signature.meaning(form),
        })
    });
    found
        .chain(kube_proxy_addresses(traces, form))
        .chain(legacy(traces))
        .collect()
}

/// In the form `dummy` the addresses on the device are ours.
fn kube_proxy_addresses(traces: &Traces, form: ServiceAddresses) -> Option<Neighbour> {
    let is_foreign = form != ServiceAddresses::Dummy && traces.dummy_addresses > 0;
    is_foreign.then(|| Neighbour {
        name: "kube-proxy (IPVS mode)",
        trace: format!("{} addresses on kube-ipvs0", traces.dummy_addresses),
        meaning: "left by kube-proxy, or by --service-addresses=dummy; `run` replaces them by routes",
    })
}

/// iptables-legacy needs its own interface, which is not netlink, so its chains stay unknown.
fn legacy(traces: &Traces) -> Option<Neighbour> {
    let tables = traces.legacy_tables.iter();
    // Both families have tables of the same names.
    let names: BTreeSet<&str> = tables.map(|table| &*table.name).collect();
    (!names.is_empty()).then(|| Neighbour {
        name: "iptables-legacy",
        trace: format!("tables in use: {}", Vec::from_iter(names).join(", ")),
        meaning: "its rules cannot be read here; check `iptables-legacy-save` for a drop in INPUT or FORWARD",
    })
}

/// Returns the section of `status` about neighbours; empty without any.
pub(crate) fn text(neighbours: &[Neighbour]) -> String {
    if neighbours.is_empty() {
        return String::new();
    }
    let lines = neighbours
        .iter()
        .map(|neighbour| format!("  {neighbour}\n"));
    format!(
        "\nNeighbours ({}):\n{}",
        neighbours.len(),
        lines.collect::<String>()
    )
}

impl fmt::Display for Neighbour {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}): {}", self.name, self.trace, self.meaning)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chain(family: &'static str, table: &str, name: &str) -> ChainName {
        ChainName {
            family,
            table: table.into(),
            name: name.into(),
        }
    }

    fn names(traces: &Traces, form: ServiceAddresses) -> Vec<&'static str> {
        recognise(traces, form)
            .iter()
            .map(|found| found.name)
            .collect()
    }

    #[test]
    fn devices_are_read_from_the_kernels_table() {
        let text = "Inter-|   Receive  |  Transmit\n face |bytes packets|bytes packets\n    lo: 1 2 3\ncali12ab: 4 5\n";
        assert_eq!(
            device_names(text),
            ["cali12ab", "lo"].map(String::from).into()
        );
        assert_eq!(device_names(""), BTreeSet::new());
    }

    #[test]
    fn each_program_is_recognised_by_its_chains() {
        for (family, table, name, program) in [
            ("ip", "filter", "cali-INPUT", "Felix (Calico)"),
            ("inet", "calico", "filter-INPUT", "Felix (Calico)"),
            ("ip", "nat", "CNI-HOSTPORT-DNAT", "portmap (CNI plugin)"),
            ("inet", "cni_hostport", "hostports", "portmap (CNI plugin)"),
            ("ip", "nat", "DOCKER", "Docker"),
            ("ip", "nat", "KUBE-HOSTPORTS", "CRI-O (hostPort)"),
            ("ip6", "crio-hostports", "hostports", "CRI-O (hostPort)"),
            ("ip", "filter", "ufw-before-input", "ufw"),
            ("ip6", "filter", "ufw6-user-input", "ufw"),
            ("inet", "firewalld", "filter_INPUT", "firewalld"),
            ("ip", "nat", "KUBE-SERVICES", "kube-proxy"),
            ("ip", "kube-proxy", "services", "kube-proxy"),
        ] {
            let traces = Traces {
                chains: vec![chain(family, table, name)],
                ..Traces::default()
            };
            assert_eq!(
                names(&traces, ServiceAddresses::Routes),
                [program],
                "{table} {name}"
            );
        }
    }

    #[test]
    fn chains_of_the_kubelet_and_ours_are_no_neighbours() {
        let traces = Traces {
            chains: vec![
                chain("ip", "mangle", "KUBE-KUBELET-CANARY"),
                chain("ip", "filter", "KUBE-FIREWALL"),
                chain("ip", "nat", "KUBE-MARK-MASQ"),
                chain("inet", "ipvs-proxier", "services"),
                chain("ip", "filter", "INPUT"),
            ],
            devices: ["lo", "eth0", "kube-ipvs0"].map(String::from).into(),
            ..Traces::default()
        };
        assert_eq!(names(&traces, ServiceAddresses::Routes), [""; 0]);
    }

    #[test]
    fn felix_means_something_else_if_service_addresses_are_local_otherwise() {
        let traces = Traces {
            devices: ["cali0a1b2c3d4e5"].map(String::from).into(),
            ..Traces::default()
        };
        let line = |form| recognise(&traces, form)[0].to_string();
        assert!(line(ServiceAddresses::None).contains("packets are translated before its chains"));
        assert!(
            line(ServiceAddresses::Routes).starts_with("Felix (Calico) (device cali0a1b2c3d4e5): ")
        );
        assert_ne!(
            line(ServiceAddresses::Routes),
            line(ServiceAddresses::Loopback)
        );
        assert_eq!(
            line(ServiceAddresses::Routes),
            line(ServiceAddresses::Dummy)
        );
    }

    #[test]
    fn addresses_on_the_dummy_device_are_kube_proxys_unless_that_is_our_form() {
        let traces = Traces {
            dummy_addresses: 8,
            ..Traces::default()
        };
        assert_eq!(
            names(&traces, ServiceAddresses::Routes),
            ["kube-proxy (IPVS mode)"]
        );
        assert_eq!(names(&traces, ServiceAddresses::Dummy), [""; 0]);
    }
}

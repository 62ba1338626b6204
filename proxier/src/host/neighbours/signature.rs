//! The traces by which programs are recognised.

use super::Traces;
use crate::plan::ServiceAddresses;

/// The traces of one program and what its presence means.
pub(super) struct Signature {
    pub(super) name: &'static str,
    /// The beginnings of the names of its devices.
    devices: &'static [&'static str],
    /// The names of tables that only this program creates.
    tables: &'static [&'static str],
    /// The beginnings of the names of its chains, in any table.
    chains: &'static [&'static str],
    /// Its run-time directory. In a container, only visible if it is mounted.
    pub(super) directory: Option<&'static str>,
    meaning: &'static str,
    /// The meaning with `--service-addresses=loopback`, if it differs.
    with_loopback: Option<&'static str>,
    /// The meaning with the dataplane nftables, if it differs.
    with_maps: Option<&'static str>,
}

/// Base for signatures: most programs have few kinds of traces.
const NONE: Signature = Signature {
    name: "",
    devices: &[],
    tables: &[],
    chains: &[],
    directory: None,
    meaning: "",
    with_loopback: None,
    with_maps: None,
};

const HOST_PORTS: &str = "its rules for hostPort match every local address; Services are exempt, because \
                          their connections get a destination before these rules";

const INPUT_FILTER: &str = "if it drops incoming packets, only this node reaches Services; pass \
                            --input-drop=accept";

const NO_DEVICE: &str = "it finds no device, address or route of Services";

/// All known programs.
pub(super) const SIGNATURES: [Signature; 12] = [
    Signature {
        name: "Felix (Calico)",
        devices: &["cali"],
        tables: &["calico"],
        chains: &["cali-"],
        meaning: "NetworkPolicy applies to Services, because Felix does not count the addresses of \
                  kube-ipvs0 as the host's; if node ports are not 30000-32767, set kubeNodePortRanges",
        with_maps: Some(
            "NetworkPolicy applies to Services, because packets are translated before its chains",
        ),
        with_loopback: Some(
            "NetworkPolicy does NOT apply to Services, because Felix counts local routes on lo as \
             addresses of the host; pass --service-addresses=routes",
        ),
        ..NONE
    },
    Signature {
        name: "portmap (CNI plugin)",
        tables: &["cni_hostport"],
        chains: &["CNI-HOSTPORT-", "CNI-DN-"],
        meaning: HOST_PORTS,
        ..NONE
    },
    Signature {
        name: "Docker",
        chains: &["DOCKER"],
        meaning: HOST_PORTS,
        ..NONE
    },
    Signature {
        name: "CRI-O (hostPort)",
        tables: &["crio-hostports"],
        chains: &["CRIO-HOSTPORTS-", "KUBE-HOSTPORTS", "KUBE-HP-"],
        meaning: HOST_PORTS,
        ..NONE
    },
    Signature {
        name: "node-cache (NodeLocal DNSCache)",
        devices: &["nodelocaldns"],
        meaning: "its addresses stay its own: no virtual server and no node port is created there \
                  (--yield-devices)",
        ..NONE
    },
    Signature {
        name: "ufw",
        chains: &["ufw-", "ufw6-"],
        meaning: INPUT_FILTER,
        with_maps: Some(
            "if it drops forwarded packets, our rule accepts those of Services (--forward-drop); if it drops \
             incoming packets, only this node reaches endpoints at its own addresses; pass --input-drop=accept",
        ),
        ..NONE
    },
    Signature {
        name: "firewalld",
        tables: &["firewalld"],
        meaning: INPUT_FILTER,
        with_maps: Some("its chains accept what is translated, so it does not concern Services"),
        ..NONE
    },
    Signature {
        name: "kube-router",
        devices: &["kube-bridge", "kube-dummy-if"],
        chains: &["KUBE-ROUTER-"],
        meaning: "its service proxy must be off (--run-service-proxy=false); its network policies apply \
                  to Services",
        ..NONE
    },
    Signature {
        name: "Cilium",
        devices: &["cilium_host"],
        chains: &["CILIUM_"],
        meaning: "its kube-proxy replacement must be off (kubeProxyReplacement=false); otherwise it serves \
                  Services before IPVS",
        ..NONE
    },
    Signature {
        name: "systemd-networkd",
        directory: Some("/run/systemd/netif"),
        meaning: "if a .network file matches kube-ipvs0, `networkctl reconfigure` deletes its routes; mark \
                  the device as unmanaged (deploy/unmanaged)",
        with_maps: Some(NO_DEVICE),
        ..NONE
    },
    Signature {
        name: "NetworkManager",
        directory: Some("/run/NetworkManager"),
        meaning: "it may manage kube-ipvs0; mark the device as unmanaged (deploy/unmanaged)",
        with_maps: Some(NO_DEVICE),
        ..NONE
    },
    Signature {
        name: "kube-proxy",
        tables: &["kube-proxy"],
        // The kubelet creates KUBE-KUBELET-CANARY, KUBE-FIREWALL and KUBE-MARK-*, with or without
        // kube-proxy, so the common beginning KUBE- proves nothing.
        chains: &[
            "KUBE-SERVICES",
            "KUBE-NODE-PORT",
            "KUBE-LOAD-BALANCER",
            "KUBE-POSTROUTING",
            "KUBE-FORWARD",
            "KUBE-EXTERNAL-SERVICES",
            "KUBE-PROXY-",
            "KUBE-IPVS-",
            "KUBE-SVC-",
        ],
        meaning: "running beside ipvs-proxier, or leftovers; `run` removes them after kube-proxy has \
                  stopped",
        ..NONE
    },
];

impl Signature {
    /// Returns the first trace of this program, as words; `None` if it left none.
    pub(super) fn find(&self, traces: &Traces) -> Option<String> {
        let begins = |name: &str, all: &[&str]| all.iter().any(|begin| name.starts_with(begin));
        if let Some(device) = traces
            .devices
            .iter()
            .find(|name| begins(name, self.devices))
        {
            return Some(format!("device {device}"));
        }
        let chain = traces
            .chains
            .iter()
            .find(|chain| self.tables.contains(&&*chain.table) || begins(&chain.name, self.chains));
        if let Some(chain) = chain {
            return Some(chain.to_string());
        }
        let directory = self
            .directory
            .filter(|_| traces.directories.contains(&self.name));
        directory.map(|directory| format!("directory {directory}"))
    }

    /// Returns what the program means if service addresses are local in this form.
    pub(super) fn meaning(&self, form: ServiceAddresses) -> &'static str {
        let special = match form {
            ServiceAddresses::Loopback => self.with_loopback,
            ServiceAddresses::None => self.with_maps,
            ServiceAddresses::Routes | ServiceAddresses::Dummy => None,
        };
        special.unwrap_or(self.meaning)
    }
}

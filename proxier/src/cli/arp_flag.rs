//! The flag about ARP.

use clap::{Args, ValueEnum};

/// How this node answers ARP requests for service addresses.
#[derive(Args, Debug)]
pub(super) struct ArpFlag {
    /// How this node treats service addresses in ARP messages. Default: strict with --ipvs-strict-arp,
    /// otherwise off. kube-proxy has no such flag.
    #[arg(long, value_enum, value_name = "MODE")]
    arp: Option<ArpMode>,
}

/// How this node treats service addresses in ARP messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum ArpMode {
    /// Set arp_ignore and arp_announce for the whole host, as --ipvs-strict-arp.
    Strict,
    /// Hide load-balancer and external addresses of Services by packet rules; the host's settings stay.
    Services,
    /// Nothing: the kernel answers requests for each service address, on each link.
    Off,
}

impl ArpFlag {
    /// Returns whether packet rules hide external addresses.
    pub(super) fn hides_services(&self) -> bool {
        self.arp == Some(ArpMode::Services)
    }

    /// Returns whether `arp_ignore` and `arp_announce` are set. kube-proxy's flag has the value
    /// `is_strict`; ours has precedence.
    pub(super) fn is_strict(&self, is_strict: bool) -> bool {
        match self.arp {
            Some(mode) => mode == ArpMode::Strict,
            None => is_strict,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_flag_has_precedence_over_that_of_kube_proxy() {
        for (arp, is_strict, expected) in [
            (None, false, false),
            (None, true, true),
            (Some(ArpMode::Strict), false, true),
            (Some(ArpMode::Services), true, false),
            (Some(ArpMode::Off), true, false),
        ] {
            assert_eq!(ArpFlag { arp }.is_strict(is_strict), expected, "{arp:?}");
        }
    }
}

//! The addresses that serve node ports (`--nodeport-addresses`).

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::cluster::model::{Cidr, Family};

/// The words in place of networks: the node's main address of each family, its loopback addresses (Kubernetes 1.37), and
/// all addresses (1.37).
const WORDS: [&str; 3] = ["primary", "localhost", "all"];

/// The operator's choice of the addresses that serve node ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodePortAddresses {
    /// The addresses in these networks. A family without a network in the list, or with one of
    /// length 0, serves on all of its addresses.
    Networks(Vec<Cidr>),
    /// The first address of each family in the Node object.
    ///
    /// A family without an address there serves no node ports, as the Kubernetes documentation
    /// says. kube-proxy's IPVS mode differs: it serves them on all addresses.
    Primary,
    /// Those of [`NodePortAddresses::Primary`], and loopback addresses.
    PrimaryAndLoopback,
}

/// The default is all addresses.
impl Default for NodePortAddresses {
    fn default() -> Self {
        Self::Networks(Vec::new())
    }
}

impl NodePortAddresses {
    /// Parses the values of the flag; an empty list means all addresses.
    ///
    /// # Errors
    /// If a value is neither a network nor one of `primary`, `localhost` and `all`, or if one of these is repeated or
    /// combined with networks. The error has the index of the value.
    pub fn parse<'a>(
        words: impl IntoIterator<Item = &'a str>,
    ) -> Result<Self, (usize, InvalidNodePortAddresses)> {
        let words: Vec<&str> = words.into_iter().collect();
        let has = |word: &str| words.contains(&word);
        if let Some(index) = words.iter().position(|word| WORDS.contains(word)) {
            let is_first = |(index, word): (usize, &&str)| {
                WORDS.contains(word) && !words[..index].contains(word)
            };
            if !words.iter().enumerate().all(is_first) {
                return Err((
                    index,
                    InvalidNodePortAddresses::Mixed(words[index].to_owned()),
                ));
            }
            return Ok(match (has("all"), has("primary"), has("localhost")) {
                (true, ..) => Self::default(),
                (_, true, true) => Self::PrimaryAndLoopback,
                (_, true, false) => Self::Primary,
                (_, false, _) => Self::loopback(),
            });
        }
        // `--nodeport-addresses=` is one empty value to clap.
        if words == [""] {
            return Ok(Self::default());
        }
        let read = |(index, word): (usize, &&str)| match Cidr::parse(word) {
            // Unlike `Cidr::parse`, Go permits no white space around it.
            Ok(network) if !word.contains(char::is_whitespace) => Ok(network),
            _ => Err((index, InvalidNodePortAddresses::Word)),
        };
        let networks = words
            .iter()
            .enumerate()
            .map(read)
            .collect::<Result<_, _>>()?;
        Ok(Self::Networks(networks))
    }

    /// Returns the loopback addresses of both families.
    fn loopback() -> Self {
        let hosts = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
        Self::Networks(hosts.map(|host: IpAddr| host.into()).into())
    }

    /// Returns the addresses of `machine` that serve node ports of `family`, in order.
    ///
    /// `node` lists the addresses of the Node object in its order, the main ones first.
    pub fn serving(
        &self,
        family: Family,
        machine: &BTreeSet<IpAddr>,
        node: &[IpAddr],
    ) -> Vec<IpAddr> {
        let of_family = |address: &IpAddr| Family::from(*address) == family;
        let machine = machine.iter().copied().filter(of_family);
        match self {
            Self::Primary | Self::PrimaryAndLoopback => {
                let primary = node.iter().find(|address| of_family(address));
                machine.filter(|own| Some(own) == primary).collect()
            }
            Self::Networks(networks) => {
                let is_everywhere = self.serves_everywhere(family);
                machine
                    .filter(|&own| is_everywhere || networks.iter().any(|net| net.contains(own)))
                    .collect()
            }
        }
    }

    /// Returns whether `address` serves node ports if the machine has it.
    ///
    /// The node's main address is never a loopback address, so [`NodePortAddresses::Primary`] includes none.
    pub(super) fn includes_loopback(&self, address: IpAddr) -> bool {
        match self {
            Self::Primary => false,
            Self::PrimaryAndLoopback => address.is_loopback(),
            Self::Networks(networks) => {
                self.serves_everywhere(address.into())
                    || networks.iter().any(|net| net.contains(address))
            }
        }
    }

    /// Returns the addresses at which a server of this process listens to serve node ports of
    /// `family`.
    ///
    /// The unspecified address stands for all addresses, including later ones and loopback.
    pub fn listening(
        &self,
        family: Family,
        machine: &BTreeSet<IpAddr>,
        node: &[IpAddr],
    ) -> Vec<IpAddr> {
        match (self.serves_everywhere(family), family) {
            (true, Family::V4) => vec![Ipv4Addr::UNSPECIFIED.into()],
            (true, Family::V6) => vec![Ipv6Addr::UNSPECIFIED.into()],
            (false, _) => self.serving(family, machine, node),
        }
    }

    /// Returns whether all addresses of `family` serve node ports.
    fn serves_everywhere(&self, family: Family) -> bool {
        let Self::Networks(networks) = self else {
            return false;
        };
        let mut networks = networks.iter().filter(|net| net.family() == family);
        let is_restricted = networks.clone().next().is_some();
        !is_restricted || networks.any(|net| net.prefix_len() == 0)
    }
}

/// The reason why a list of node-port addresses is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidNodePortAddresses {
    /// A value is not a network. The text is kube-proxy's.
    #[error("must be a valid CIDR")]
    Word,
    /// This word is repeated or combined with networks. The text is kube-proxy's.
    #[error("can't use both '{0}' and CIDRs")]
    Mixed(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(text: &str) -> Vec<IpAddr> {
        let words = text.split_whitespace();
        words.map(|word| word.parse().unwrap()).collect()
    }

    /// Checks the serving addresses of both families.
    fn check(words: &str, machine: &str, node: &str, v4: &str, v6: &str) {
        let chosen = NodePortAddresses::parse(words.split_whitespace()).unwrap();
        let machine = addresses(machine).into_iter().collect();
        let serving = |family| chosen.serving(family, &machine, &addresses(node));
        let found = (serving(Family::V4), serving(Family::V6));
        assert_eq!(found, (addresses(v4), addresses(v6)), "{words}");
    }

    /// The cases of kube-proxy's tests ("Node-port addresses" in the inventory), without loopback
    /// addresses: [`Machine`](crate::plan::Machine) never has them.
    #[test]
    fn networks_restrict_their_own_family_only() {
        let machine = "10.20.30.51 100.200.201.1 2001:db8::1";
        let all_v4 = "10.20.30.51 100.200.201.1";
        check("", machine, "", all_v4, "2001:db8::1");
        check("10.20.30.0/24", machine, "", "10.20.30.51", "2001:db8::1");
        check("0.0.0.0/0", machine, "", all_v4, "2001:db8::1");
        check("::/0", machine, "", all_v4, "2001:db8::1");
        check("2001:db8::/64 ::1/128", machine, "", all_v4, "2001:db8::1");
        check("2001:db9::/64", machine, "", all_v4, "");
        check(
            "10.20.30.0/24 100.200.201.0/24",
            machine,
            "",
            all_v4,
            "2001:db8::1",
        );
        check("127.0.0.0/8", machine, "", "", "2001:db8::1");
        check("1.2.3.0/24", machine, "", "", "2001:db8::1");
        check("1.2.3.0/24 0.0.0.0/0", machine, "", all_v4, "2001:db8::1");
        check(
            "10.20.30.0/24 ::/0 2001:db9::/64",
            machine,
            "",
            "10.20.30.51",
            "2001:db8::1",
        );
        check(
            "0.0.0.0/0 10.20.30.0/24 2001:db9::/64",
            machine,
            "",
            all_v4,
            "",
        );
    }

    #[test]
    fn primary_is_the_nodes_first_address_of_each_family_if_the_machine_has_it() {
        let machine = "10.0.0.1 10.0.0.2 fd00::1 fd00::2";
        check(
            "primary",
            machine,
            "10.0.0.2 fd00::1 10.0.0.1",
            "10.0.0.2",
            "fd00::1",
        );
        check("primary", machine, "fd00::2", "", "fd00::2");
        check("primary", machine, "", "", "");
        check("primary", machine, "192.0.2.1 10.0.0.1", "", "");
    }

    #[test]
    fn invalid_values_are_rejected() {
        let parse = |words: &[&str]| NodePortAddresses::parse(words.iter().copied());
        assert_eq!(parse(&[]), Ok(NodePortAddresses::default()));
        assert_eq!(parse(&[""]), Ok(NodePortAddresses::default()));
        assert_eq!(parse(&["primary"]), Ok(NodePortAddresses::Primary));
        for (index, mixed) in [
            (0, &["primary", "10.0.0.0/8"][..]),
            (1, &["10.0.0.0/8", "primary"]),
            (0, &["primary", "primary"]),
            (1, &["10.0.0.0/8", "localhost"]),
            (0, &["all", "10.0.0.0/8", "localhost"]),
        ] {
            let word = InvalidNodePortAddresses::Mixed(mixed[index].to_owned());
            assert_eq!(parse(mixed), Err((index, word)));
        }
        for word in ["10.0.0.1", "Primary", "::0", "10.0.0.0/33", "", " fd00::/8"] {
            let wrong = parse(&["10.0.0.0/8", word]);
            assert_eq!(wrong, Err((1, InvalidNodePortAddresses::Word)));
        }
    }

    #[test]
    fn words_of_kubernetes_1_37_choose_loopback_addresses_and_all() {
        let parse = |words: &[&str]| NodePortAddresses::parse(words.iter().copied()).unwrap();
        let localhost = IpAddr::from(Ipv4Addr::LOCALHOST);
        for (words, v4, has_loopback) in [
            (&["primary"][..], "10.0.0.2", false),
            (&["primary", "localhost"], "10.0.0.2", true),
            (&["localhost", "primary"], "10.0.0.2", true),
            (&["localhost"], "", true),
            (&["all"], "10.0.0.1 10.0.0.2", true),
            (&["primary", "all"], "10.0.0.1 10.0.0.2", true),
        ] {
            let chosen = parse(words);
            let machine = addresses("10.0.0.1 10.0.0.2").into_iter().collect();
            let node = addresses("10.0.0.2");
            assert_eq!(
                chosen.serving(Family::V4, &machine, &node),
                addresses(v4),
                "{words:?}"
            );
            assert_eq!(
                chosen.includes_loopback(localhost),
                has_loopback,
                "{words:?}"
            );
        }
    }
}

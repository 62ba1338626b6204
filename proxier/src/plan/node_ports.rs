//! Which addresses of a node serve node ports (`--nodeport-addresses`).

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::model::{Cidr, Family};

/// The word for the node's main address of each family.
const PRIMARY: &str = "primary";

/// The operator's choice of the addresses that serve node ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodePortAddresses {
    /// Those in these networks. A family without a network in the list, or with one of length 0,
    /// serves on all of its addresses.
    Networks(Vec<Cidr>),
    /// The node's main address of each family, as the Node object says. A family that the object
    /// does not mention serves nowhere: so the Kubernetes documentation, where kube-proxy's IPVS
    /// mode would serve on all addresses.
    Primary,
}

/// All addresses.
impl Default for NodePortAddresses {
    fn default() -> Self {
        Self::Networks(Vec::new())
    }
}

impl NodePortAddresses {
    /// Reads the words of the flag or of the configuration file; none mean all addresses.
    ///
    /// # Errors
    /// When a word is neither a network nor `primary`, and when `primary` is not the only one
    /// (kube-proxy's `validateKubeProxyNodePortAddress`, 1.36).
    pub fn parse<'a>(
        words: impl IntoIterator<Item = &'a str>,
    ) -> Result<Self, InvalidNodePortAddresses> {
        let words: Vec<&str> = words.into_iter().collect();
        match words[..] {
            // How an empty list is written on a command line.
            [""] => return Ok(Self::default()),
            [PRIMARY] => return Ok(Self::Primary),
            _ if words.contains(&PRIMARY) => return Err(InvalidNodePortAddresses::Mixed),
            _ => {}
        }
        let read = |word: &str| {
            Cidr::parse(word).map_err(|_| InvalidNodePortAddresses::Word(word.to_owned()))
        };
        let networks = words.into_iter().map(read).collect::<Result<_, _>>()?;
        Ok(Self::Networks(networks))
    }

    /// The addresses of `machine` that serve node ports of `family`, in order. `node` is what the
    /// Node object names, the most important first.
    pub fn serving(
        &self,
        family: Family,
        machine: &BTreeSet<IpAddr>,
        node: &[IpAddr],
    ) -> Vec<IpAddr> {
        let of_family = |address: &IpAddr| Family::from(*address) == family;
        let machine = machine.iter().copied().filter(of_family);
        match self {
            Self::Primary => {
                let primary = node.iter().find(|address| of_family(address));
                machine.filter(|own| Some(own) == primary).collect()
            }
            Self::Networks(networks) => {
                let networks = networks.iter().filter(|net| net.family() == family);
                let names_some = networks.clone().next().is_some();
                let names_all = networks.clone().any(|net| net.prefix_len() == 0);
                machine
                    .filter(|&own| {
                        !names_some || names_all || networks.clone().any(|net| net.contains(own))
                    })
                    .collect()
            }
        }
    }
}

/// Why words cannot say which addresses serve node ports.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidNodePortAddresses {
    /// A word is no network.
    #[error("{0:?} is not a network in CIDR form, such as 192.0.2.0/24, and not \"primary\"")]
    Word(String),
    /// `primary` was given beside others.
    #[error("\"primary\" cannot be combined with networks")]
    Mixed,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(text: &str) -> Vec<IpAddr> {
        let words = text.split_whitespace();
        words.map(|word| word.parse().unwrap()).collect()
    }

    /// Chooses among `machine`; answers both families' addresses in one line.
    fn check(words: &str, machine: &str, node: &str, v4: &str, v6: &str) {
        let chosen = NodePortAddresses::parse(words.split_whitespace()).unwrap();
        let machine = addresses(machine).into_iter().collect();
        let serving = |family| chosen.serving(family, &machine, &addresses(node));
        let found = (serving(Family::V4), serving(Family::V6));
        assert_eq!(found, (addresses(v4), addresses(v6)), "{words}");
    }

    /// Rows of M, "Node-port addresses", of the inventory of kube-proxy's tests, less loopback,
    /// which never is among the machine's addresses.
    #[test]
    fn networks_choose_per_family() {
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
    fn primary_is_the_first_of_each_family_where_the_machine_has_it() {
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
    fn words_that_mean_nothing_are_refused() {
        let parse = |words: &[&str]| NodePortAddresses::parse(words.iter().copied());
        assert_eq!(parse(&[]), Ok(NodePortAddresses::default()));
        assert_eq!(parse(&[""]), Ok(NodePortAddresses::default()));
        assert_eq!(parse(&["primary"]), Ok(NodePortAddresses::Primary));
        for mixed in [
            &["primary", "10.0.0.0/8"][..],
            &["10.0.0.0/8", "primary"],
            &["primary", "primary"],
        ] {
            assert_eq!(parse(mixed), Err(InvalidNodePortAddresses::Mixed));
        }
        for word in ["10.0.0.1", "Primary", "::0", "10.0.0.0/33", ""] {
            let wrong = parse(&["10.0.0.0/8", word]);
            assert_eq!(wrong, Err(InvalidNodePortAddresses::Word(word.to_owned())));
        }
    }
}

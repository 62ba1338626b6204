//! Parsing of addresses and networks by Kubernetes' rules.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::cluster::model::Cidr;

/// Parses an address with the leniency of Go before 1.17, which stored objects rely on.
///
/// IPv4 octets may have leading zeros and are decimal. An IPv4-mapped IPv6 address becomes the IPv4
/// address. A scoped IPv6 address is rejected.
pub(crate) fn parse_address(text: &str) -> Option<IpAddr> {
    if let Some(address) = parse_v4(text) {
        return Some(address.into());
    }
    let address = match text.rsplit_once(':')? {
        (head, tail) if tail.contains('.') => {
            format!("{head}:{}", parse_v4(tail)?).parse::<Ipv6Addr>()
        }
        _ => text.parse(),
    };
    // Go's net.IP, which kube-proxy uses, does not distinguish ::ffff:10.0.0.1 from 10.0.0.1.
    Some(address.ok()?.to_canonical())
}

/// Parses a network with the same leniency; ignores white space around it.
pub(super) fn parse_network(text: &str) -> Option<Cidr> {
    let (address, length) = text.trim().split_once('/')?;
    let length: u8 = match length {
        "" => return None,
        digits if digits.bytes().all(|byte| byte.is_ascii_digit()) => digits.parse().ok()?,
        _ => return None,
    };
    let canonical = parse_address(address)?;
    // The length of a mapped network includes the 96 bits of ::ffff:0:0.
    let is_mapped = canonical.is_ipv4() && address.contains(':');
    let length = if is_mapped {
        length.checked_sub(96)?
    } else {
        length
    };
    Cidr::parse(&format!("{canonical}/{length}")).ok()
}

/// Returns why `address` cannot be part of a Service, or `None` if it can.
pub(super) fn why_unusable(address: IpAddr) -> Option<&'static str> {
    let is_broadcast = matches!(address, IpAddr::V4(v4) if v4.is_broadcast());
    if address.is_unspecified() {
        Some("is the unspecified address")
    } else if address.is_loopback() {
        Some("is a loopback address")
    } else if address.is_multicast() || is_broadcast {
        Some("is a multicast or broadcast address")
    } else {
        None
    }
}

/// Returns why `address` cannot be an endpoint, cluster IP or external IP, or `None` if it can.
///
/// As [`why_unusable`], plus link-local addresses, which identify a host only with an interface. The
/// API server rejects the same addresses.
pub(super) fn why_unusable_or_link_local(address: IpAddr) -> Option<&'static str> {
    let is_link_local = match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    if is_link_local {
        Some("is a link-local address")
    } else {
        why_unusable(address)
    }
}

/// Unlike `Ipv4Addr::from_str`, accepts leading zeros.
fn parse_v4(text: &str) -> Option<Ipv4Addr> {
    let (mut address, mut dots, mut octet) = (0_u32, 0, None);
    for byte in text.bytes() {
        match byte {
            b'0'..=b'9' => {
                let longer = octet.unwrap_or(0) * 10 + u32::from(byte - b'0');
                if longer > u8::MAX.into() {
                    return None;
                }
                octet = Some(longer);
            }
            b'.' => {
                address = address << 8 | octet.take()?;
                dots += 1;
            }
            _ => return None,
        }
    }
    let address = address << 8 | octet?;
    (dots == 3).then(|| address.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_parsed_leniently() {
        for (text, canonical) in [
            ("10.0.0.1", "10.0.0.1"),
            ("010.000.00.01", "10.0.0.1"),
            ("::ffff:010.0.0.1", "10.0.0.1"),
            ("::ffff:a00:1", "10.0.0.1"),
            ("FD00::1", "fd00::1"),
            ("::", "::"),
        ] {
            let address = parse_address(text).map(|address| address.to_string());
            assert_eq!(address.as_deref(), Some(canonical), "{text}");
        }
        for text in [
            "",
            "1.2.3",
            "1.2.3.4.5",
            "1.2.3.256",
            "1.2.3.+4",
            "1.2.3.-4",
            " 1.2.3.4",
            "0x1.2.3.4",
            "fe80::1%eth0",
            ":",
            "fd00:::1",
            "1..2.3",
            "[::1]",
            "None",
        ] {
            assert_eq!(parse_address(text), None, "{text}");
        }
    }

    #[test]
    fn networks_are_parsed_leniently() {
        for (text, canonical) in [
            (" 10.1.2.3/28\t", "10.1.2.0/28"),
            ("010.0.0.0/8", "10.0.0.0/8"),
            ("::ffff:10.0.0.0/104", "10.0.0.0/8"),
            ("fd00::1/64", "fd00::/64"),
        ] {
            let network = parse_network(text).map(|network| network.to_string());
            assert_eq!(network.as_deref(), Some(canonical), "{text}");
        }
        for text in [
            "10.0.0.1",
            "10.0.0.0/33",
            "/8",
            "10.0.0.0/",
            "::ffff:10.0.0.0/8",
            "a/8",
        ] {
            assert_eq!(parse_network(text), None, "{text}");
        }
    }
}

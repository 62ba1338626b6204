//! The hash of an address in the kernel's hashing schedulers.

use std::net::IpAddr;

use crate::options::Family;

/// Returns an IPv4 address in host order, or the XOR of the four words of an IPv6 address.
///
/// `family` is that of the virtual server, not of the address: the kernel stores both kinds in one
/// union (`union nf_inet_addr`), so an IPv4 virtual server reads only the first word of an IPv6 server.
pub(super) fn fold(family: Family, address: IpAddr) -> u32 {
    match (family, address) {
        (_, IpAddr::V4(address)) => address.to_bits(),
        (Family::V4, IpAddr::V6(address)) => words(address.to_bits())[0],
        (Family::V6, IpAddr::V6(address)) => {
            let [a, b, c, d] = words(address.to_bits());
            a ^ b ^ c ^ d
        }
    }
}

/// Returns the multiplicative hash of `value` with `bits` bits, 1 to 32.
///
/// Kernel: `hash_32`, `include/linux/hash.h`, with the golden ratio of 4.7 and later. sh, dh, lblc and
/// lblcr use it since 4.18.
pub(super) fn hash32(value: u32, bits: u32) -> usize {
    const GOLDEN_RATIO: u32 = 0x61c8_8647;
    (value.wrapping_mul(GOLDEN_RATIO) >> (32 - bits)) as usize
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "each word is the low 32 bits of a shift"
)]
fn words(bits: u128) -> [u32; 4] {
    [96, 64, 32, 0].map(|shift| (bits >> shift) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_of_known_addresses_match() {
        let vectors = [
            ("10.0.0.1", 39, 159),
            ("10.0.0.2", 137, 550),
            ("192.168.1.1", 136, 547),
            ("192.168.1.10", 248, 995),
            ("127.0.0.1", 154, 619),
            ("255.255.255.255", 158, 632),
            ("2001:db8::1", 63, 252),
            ("2001:db8:1:2:3:4:5:6", 124, 498),
            ("fd00::1", 140, 563),
        ];
        for (address, eight_bits, ten_bits) in vectors {
            let address: IpAddr = address.parse().unwrap();
            let family = if address.is_ipv4() {
                Family::V4
            } else {
                Family::V6
            };
            let folded = fold(family, address);
            assert_eq!(hash32(folded, 8), eight_bits, "{address}");
            assert_eq!(hash32(folded, 10), ten_bits, "{address}");
        }
    }

    #[test]
    fn the_family_of_the_virtual_server_decides() {
        let address: IpAddr = "2001:db8::1".parse().unwrap();
        assert_eq!(fold(Family::V4, address), 0x2001_0db8);
        assert_eq!(fold(Family::V6, address), 0x2001_0db9);
        let address: IpAddr = "10.0.0.1".parse().unwrap();
        assert_eq!(fold(Family::V6, address), 0x0a00_0001);
    }
}

//! The loads of a packet's values into registers.

use super::{ARP_SENDER, ARP_TARGET, Expressions, FIRST, Register, family_number, source_offset};
use crate::rule::{HASH_SEED, Relation, Selector};
use crate::sys::*;
use net::Family;

impl Expressions<'_, '_> {
    /// Loads the parts of a key into the registers from [`FIRST`] on. Returns the register after them.
    pub(super) fn load_key(&mut self, key: &[Selector]) -> Register {
        self.load_from(FIRST, key)
    }

    /// Loads the parts of a concatenation into the registers from `first` on. Returns the register after them.
    pub(super) fn load_from(&mut self, first: Register, parts: &[Selector]) -> Register {
        let mut register = first;
        for &selector in parts {
            self.load(selector, register);
            register.0 += width(selector);
        }
        register
    }

    pub(super) fn load(&mut self, selector: Selector, register: Register) {
        match selector {
            Selector::Source(family) | Selector::Destination(family) => {
                self.compare_family(family);
                let length = match family {
                    Family::V4 => 4,
                    Family::V6 => 16,
                };
                let offset = match selector {
                    Selector::Source(_) => source_offset(family),
                    _ => source_offset(family) + length,
                };
                self.load_payload(NFT_PAYLOAD_NETWORK_HEADER, offset, length, register);
            }
            Selector::Protocol => self.load_meta(NFT_META_L4PROTO, register),
            Selector::DestinationPort => {
                // TCP, UDP and SCTP have the destination port at the same place.
                self.load_payload(NFT_PAYLOAD_TRANSPORT_HEADER, 2, 2, register);
            }
            Selector::TcpDestinationPort => {
                self.load(Selector::Protocol, register);
                self.compare(Relation::Is, &[IPPROTO_TCP]);
                self.load(Selector::DestinationPort, register);
            }
            Selector::ArpSender => {
                self.load_payload(NFT_PAYLOAD_NETWORK_HEADER, ARP_SENDER, 4, register);
            }
            Selector::ArpTarget => {
                self.load_payload(NFT_PAYLOAD_NETWORK_HEADER, ARP_TARGET, 4, register);
            }
            Selector::OutputInterface => self.load_meta(NFT_META_OIFNAME, register),
            Selector::Mark => self.load_meta(NFT_META_MARK, register),
            Selector::ConnectionId => self.load_ct(NFT_CT_ID, register),
            Selector::OriginalSource(Family::V4) => self.load_original(NFT_CT_SRC_IP, register),
            Selector::OriginalSource(Family::V6) => self.load_original(NFT_CT_SRC_IP6, register),
            Selector::OriginalDestination(Family::V4) => {
                self.load_original(NFT_CT_DST_IP, register);
            }
            Selector::OriginalDestination(Family::V6) => {
                self.load_original(NFT_CT_DST_IP6, register);
            }
            Selector::OriginalDestinationPort => self.load_original(NFT_CT_PROTO_DST, register),
            Selector::Number(number) => {
                self.load_number(NFT_NG_INCREMENTAL, 1, number, register);
            }
            Selector::Random { count, first } => {
                self.load_number(NFT_NG_RANDOM, count, first, register);
            }
            Selector::SourceHash {
                family,
                with_port,
                count,
                first,
            } => {
                // nft leaves room for a result of 16 bytes.
                let input = Register(register.0 + 5);
                self.load(Selector::Source(family), input);
                let mut length = 4 * width(Selector::Source(family));
                if with_port {
                    let port = Register(input.0 + width(Selector::Source(family)));
                    // TCP, UDP and SCTP have the source port at the same place.
                    self.load_payload(NFT_PAYLOAD_TRANSPORT_HEADER, 0, 2, port);
                    length += 4;
                }
                self.expression("hash", |data| {
                    data.u32_be(NFTA_HASH_SREG, input.number());
                    data.u32_be(NFTA_HASH_DREG, register.number());
                    data.u32_be(NFTA_HASH_LEN, length);
                    data.u32_be(NFTA_HASH_MODULUS, count);
                    data.u32_be(NFTA_HASH_SEED, HASH_SEED);
                    data.u32_be(NFTA_HASH_OFFSET, first);
                    data.u32_be(NFTA_HASH_TYPE, NFT_HASH_JENKINS);
                });
            }
        }
    }

    /// Compares the packet's family, once for each rule.
    pub(super) fn compare_family(&mut self, family: Family) {
        if self.family.replace(family) == Some(family) {
            return;
        }
        // In FIRST, so only the first part of a key may need it: for a later part it would
        // overwrite the first.
        self.load_meta(NFT_META_NFPROTO, FIRST);
        self.compare(Relation::Is, &[family_number(family)]);
    }

    pub(super) fn load_meta(&mut self, key: u32, register: Register) {
        self.expression("meta", |data| {
            data.u32_be(NFTA_META_KEY, key);
            data.u32_be(NFTA_META_DREG, register.number());
        });
    }

    pub(super) fn load_ct(&mut self, key: u32, register: Register) {
        self.expression("ct", |data| {
            data.u32_be(NFTA_CT_KEY, key);
            data.u32_be(NFTA_CT_DREG, register.number());
        });
    }

    /// Loads a value of the connection's first packet, as it was before NAT.
    fn load_original(&mut self, key: u32, register: Register) {
        self.expression("ct", |data| {
            data.u32_be(NFTA_CT_KEY, key);
            data.u32_be(NFTA_CT_DREG, register.number());
            data.u8(NFTA_CT_DIRECTION, IP_CT_DIR_ORIGINAL);
        });
    }

    fn load_number(&mut self, kind: u32, count: u32, first: u32, register: Register) {
        self.expression("numgen", |data| {
            data.u32_be(NFTA_NG_DREG, register.number());
            data.u32_be(NFTA_NG_MODULUS, count);
            data.u32_be(NFTA_NG_TYPE, kind);
            data.u32_be(NFTA_NG_OFFSET, first);
        });
    }

    pub(super) fn load_payload(&mut self, base: u32, offset: u32, length: u32, register: Register) {
        self.expression("payload", |data| {
            data.u32_be(NFTA_PAYLOAD_DREG, register.number());
            data.u32_be(NFTA_PAYLOAD_BASE, base);
            data.u32_be(NFTA_PAYLOAD_OFFSET, offset);
            data.u32_be(NFTA_PAYLOAD_LEN, length);
        });
    }
}

/// Returns the number of registers that a part of a concatenation needs.
pub(super) fn width(selector: Selector) -> u32 {
    match selector {
        Selector::Source(Family::V6)
        | Selector::Destination(Family::V6)
        | Selector::OriginalSource(Family::V6)
        | Selector::OriginalDestination(Family::V6) => 4,
        _ => 1,
    }
}

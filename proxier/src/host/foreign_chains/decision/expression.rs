//! The expressions of foreign rules.

use std::net::{IpAddr, SocketAddr};

use netlink::Error;
use netlink::attr::{Attribute, attributes, find};

use super::elements::{Elements, Found};
use crate::cluster::model::Protocol;
use nftables::Verdict;
use nftables::raw::read_verdict;
use nftables::sys::*;

const NFTA_FIB_F_DADDR: u32 = 2;
const NFT_CMP_LT: u32 = 2;
const NFT_CMP_LTE: u32 = 3;
const NFT_CMP_GT: u32 = 4;
const NFT_CMP_GTE: u32 = 5;
const NFTA_RANGE_SREG: u16 = 1;
const NFTA_RANGE_OP: u16 = 2;
const NFTA_RANGE_FROM_DATA: u16 = 3;
const NFTA_RANGE_TO_DATA: u16 = 4;
/// The bytes of all registers.
const REGISTERS: usize = 64;
/// Flags of a TCP header: those of the first packet and of its answer.
const SYN: u8 = 0x02;
const ACK: u8 = 0x10;

/// What rules can know of a packet.
#[derive(Clone, Debug)]
pub(crate) struct Headers {
    pub(crate) protocol: Protocol,
    pub(crate) source: SocketAddr,
    pub(crate) destination: SocketAddr,
    /// The name of the input device; empty if this node sends it.
    pub(crate) input: String,
    /// The name of the output device; empty if a process of this node receives it.
    pub(crate) output: String,
    pub(crate) mark: u32,
    /// Whether it answers the first packet of its connection.
    pub(crate) is_answer: bool,
    /// Whether its destination is certainly local.
    pub(crate) is_for_this_node: bool,
}

/// Whether a rule matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fit {
    Never,
    Maybe,
    Certain,
}

/// What a rule does with a packet.
pub(super) struct Effect {
    pub(super) fit: Fit,
    pub(super) verdict: Option<Verdict>,
}

/// The registers: the bytes that are known.
struct Registers([Option<u8>; REGISTERS]);

impl Registers {
    /// Returns the first byte of a register, of which there are four with 16 bytes and sixteen with 4 bytes.
    fn at(register: u32) -> usize {
        match register as usize {
            register @ 1..=4 => (register - 1) * 16,
            register @ 8..=23 => (register - 8) * 4,
            _ => REGISTERS,
        }
    }

    /// Sets a register; unknown bytes are those of the last value, if it is not known now.
    fn set(&mut self, register: u32, value: Option<&[u8]>) {
        let first = Self::at(register);
        let length = value.map_or(16, |value| value.len().next_multiple_of(4));
        for index in 0..length {
            if let Some(byte) = self.0.get_mut(first + index) {
                *byte = value.map(|value| value.get(index).copied().unwrap_or_default());
            }
        }
    }

    /// Returns `length` bytes of a register, if all are known.
    fn get(&self, register: u32, length: usize) -> Option<Vec<u8>> {
        let first = Self::at(register);
        let bytes = self.0.get(first..first + length)?;
        bytes.iter().copied().collect()
    }

    /// Returns the known bytes from the begin of a register on.
    fn known(&self, register: u32) -> Vec<u8> {
        let bytes = self.0.get(Self::at(register)..).unwrap_or_default();
        bytes.iter().map_while(|byte| *byte).collect()
    }
}

/// Evaluates the expressions of a rule.
///
/// # Errors
/// If the kernel's message is malformed, or a set cannot be read.
pub(super) fn evaluate(
    expressions: &[u8],
    headers: &Headers,
    elements: &mut Elements<'_>,
) -> Result<Effect, Error> {
    let mut registers = Registers([None; REGISTERS]);
    let mut effect = Effect {
        fit: Fit::Certain,
        verdict: None,
    };
    for expression in attributes(expressions) {
        let expression = expression?;
        let name = find(expression.nested(), NFTA_EXPR_NAME)?;
        let name = name
            .map(|name| name.string())
            .transpose()?
            .unwrap_or_default();
        let data = find(expression.nested(), NFTA_EXPR_DATA)?;
        let of = |kind: u16| -> Result<Option<Attribute<'_>>, Error> {
            data.as_ref()
                .map_or(Ok(None), |data| find(data.nested(), kind))
        };
        let number = |kind: u16| -> Result<u32, Error> {
            let found = of(kind)?.map(|it| it.u32_be()).transpose()?;
            Ok(found.unwrap_or_default())
        };
        let value = |kind: u16| -> Result<Vec<u8>, Error> {
            let found = of(kind)?
                .map(|it| find(it.nested(), NFTA_DATA_VALUE))
                .transpose()?;
            Ok(found
                .flatten()
                .map_or_else(Vec::new, |it| it.value.to_vec()))
        };
        let fit = match name {
            "counter" | "log" | "notrack" => Some(true),
            "meta" if of(NFTA_META_SREG)?.is_some() => Some(true),
            "meta" => {
                let loaded = headers.meta(number(NFTA_META_KEY)?);
                registers.set(number(NFTA_META_DREG)?, loaded.as_deref());
                Some(true)
            }
            "payload" => {
                let (base, offset) = (number(NFTA_PAYLOAD_BASE)?, number(NFTA_PAYLOAD_OFFSET)?);
                let loaded = headers.payload(base, offset, number(NFTA_PAYLOAD_LEN)?);
                registers.set(number(NFTA_PAYLOAD_DREG)?, loaded.as_deref());
                Some(true)
            }
            "ct" => {
                let loaded = headers.connection(number(NFTA_CT_KEY)?);
                registers.set(number(NFTA_CT_DREG)?, loaded.as_deref());
                Some(true)
            }
            "bitwise" => {
                let length = number(NFTA_BITWISE_LEN)? as usize;
                let (mask, xor) = (value(NFTA_BITWISE_MASK)?, value(NFTA_BITWISE_XOR)?);
                let is_mask = number(NFTA_BITWISE_OP)? == NFT_BITWISE_MASK_XOR;
                let loaded = registers.get(number(NFTA_BITWISE_SREG)?, length);
                let result = loaded.filter(|_| is_mask).map(|loaded| {
                    let bits = mask.iter().zip(&xor);
                    let bytes = loaded.iter().zip(bits);
                    bytes
                        .map(|(byte, (mask, xor))| byte & mask ^ xor)
                        .collect::<Vec<u8>>()
                });
                registers.set(number(NFTA_BITWISE_DREG)?, result.as_deref());
                Some(true)
            }
            "cmp" => {
                let wanted = value(NFTA_CMP_DATA)?;
                let found = registers.get(number(NFTA_CMP_SREG)?, wanted.len());
                let operator = number(NFTA_CMP_OP)?;
                found.map(|found| match operator {
                    NFT_CMP_EQ => found == wanted,
                    NFT_CMP_NEQ => found != wanted,
                    NFT_CMP_LT => found < wanted,
                    NFT_CMP_LTE => found <= wanted,
                    NFT_CMP_GT => found > wanted,
                    NFT_CMP_GTE => found >= wanted,
                    _ => false,
                })
            }
            "range" => {
                let (from, to) = (value(NFTA_RANGE_FROM_DATA)?, value(NFTA_RANGE_TO_DATA)?);
                let is_in = number(NFTA_RANGE_OP)? == NFT_CMP_EQ;
                let found = registers.get(number(NFTA_RANGE_SREG)?, from.len());
                found.map(|found| (from <= found && found <= to) == is_in)
            }
            "lookup" => {
                let set = of(NFTA_LOOKUP_SET)?.map(|it| it.string()).transpose()?;
                let key = registers.known(number(NFTA_LOOKUP_SREG)?);
                let is_inverted = number(NFTA_LOOKUP_FLAGS)? & NFT_LOOKUP_F_INV != 0;
                let register = of(NFTA_LOOKUP_DREG)?.map(|it| it.u32_be()).transpose()?;
                match elements.find(set.unwrap_or_default(), &key)? {
                    Found::No => Some(is_inverted),
                    Found::Yes(verdict) => {
                        match register {
                            None => {}
                            Some(0) => effect.verdict = verdict,
                            Some(register) => registers.set(register, None),
                        }
                        Some(!is_inverted)
                    }
                    Found::Unknown => None,
                }
            }
            "immediate" => {
                let register = number(NFTA_IMMEDIATE_DREG)?;
                if register == 0 {
                    let verdict = of(NFTA_IMMEDIATE_DATA)?;
                    effect.verdict = verdict.map(|it| read_verdict(&it)).transpose()?.flatten();
                } else {
                    registers.set(register, Some(&value(NFTA_IMMEDIATE_DATA)?));
                }
                Some(true)
            }
            // Destination NAT takes the packet out of its way, too. Source NAT does not.
            "nat" if number(NFTA_NAT_TYPE)? != NFT_NAT_DNAT => Some(true),
            "reject" | "nat" | "redir" => {
                effect.verdict = Some(Verdict::Drop);
                Some(true)
            }
            "fib" => {
                let is_type = number(NFTA_FIB_RESULT)? == NFT_FIB_RESULT_ADDRTYPE;
                let is_known = is_type && number(NFTA_FIB_FLAGS)? == NFTA_FIB_F_DADDR;
                let loaded =
                    (is_known && headers.is_for_this_node).then(|| RTN_LOCAL.to_ne_bytes());
                registers.set(number(NFTA_FIB_DREG)?, loaded.as_ref().map(|it| &it[..]));
                Some(true)
            }
            "match" => {
                let name = of(NFTA_MATCH_NAME)?.map(|it| it.string()).transpose()?;
                let info = of(NFTA_MATCH_INFO)?.map_or(&[][..], |it| it.value);
                headers.extension(name.unwrap_or_default(), info)
            }
            "target" => {
                let name = of(NFTA_TARGET_NAME)?.map(|it| it.string()).transpose()?;
                if matches!(name, Some("REJECT" | "DNAT" | "REDIRECT")) {
                    effect.verdict = Some(Verdict::Drop);
                }
                Some(true)
            }
            _ => {
                // It may load a register.
                registers = Registers([None; REGISTERS]);
                None
            }
        };
        match fit {
            Some(true) => {}
            Some(false) => {
                return Ok(Effect {
                    fit: Fit::Never,
                    verdict: None,
                });
            }
            None => effect.fit = Fit::Maybe,
        }
    }
    Ok(effect)
}

impl Headers {
    fn meta(&self, key: u32) -> Option<Vec<u8>> {
        let device = |name: &str| {
            let mut bytes = name.as_bytes().to_vec();
            bytes.resize(IFNAMSIZ, 0);
            bytes
        };
        Some(match key {
            NFT_META_MARK => self.mark.to_ne_bytes().to_vec(),
            NFT_META_IIFNAME => device(&self.input),
            NFT_META_OIFNAME => device(&self.output),
            NFT_META_NFPROTO if self.source.is_ipv4() => vec![NFPROTO_IPV4],
            NFT_META_NFPROTO => vec![NFPROTO_IPV6],
            NFT_META_L4PROTO => vec![self.protocol.number()],
            _ => return None,
        })
    }

    /// Returns bytes of a header, if all of them are known.
    fn payload(&self, base: u32, offset: u32, length: u32) -> Option<Vec<u8>> {
        let mut known = [None; 44];
        let mut put = |at: usize, bytes: &[u8]| {
            for (byte, value) in known.iter_mut().skip(at).zip(bytes) {
                *byte = Some(*value);
            }
        };
        match (base, self.source.ip(), self.destination.ip()) {
            (NFT_PAYLOAD_NETWORK_HEADER, IpAddr::V4(source), IpAddr::V4(destination)) => {
                put(9, &[self.protocol.number()]);
                put(12, &source.octets());
                put(16, &destination.octets());
            }
            (NFT_PAYLOAD_NETWORK_HEADER, IpAddr::V6(source), IpAddr::V6(destination)) => {
                put(6, &[self.protocol.number()]);
                put(8, &source.octets());
                put(24, &destination.octets());
            }
            (NFT_PAYLOAD_TRANSPORT_HEADER, ..) => {
                put(0, &self.source.port().to_be_bytes());
                put(2, &self.destination.port().to_be_bytes());
                if self.protocol == Protocol::Tcp {
                    put(13, &[if self.is_answer { SYN | ACK } else { SYN }]);
                }
            }
            _ => {}
        }
        let bytes = known.get(offset as usize..)?.get(..length as usize)?;
        bytes.iter().copied().collect()
    }

    fn connection(&self, key: u32) -> Option<Vec<u8>> {
        let state = match self.is_answer {
            true => NF_CT_STATE_ESTABLISHED,
            false => NF_CT_STATE_NEW,
        };
        match key {
            NFT_CT_STATE => Some(state.to_ne_bytes().to_vec()),
            NFT_CT_DIRECTION => Some(vec![u8::from(self.is_answer)]),
            _ => None,
        }
    }

    /// Returns whether an extension of iptables matches, if it is known: structures of `linux/netfilter/xt_*.h`.
    fn extension(&self, name: &str, info: &[u8]) -> Option<bool> {
        let u16_at = |at: usize| Some(u16::from_ne_bytes(info.get(at..at + 2)?.try_into().ok()?));
        let u32_at = |at: usize| Some(u32::from_ne_bytes(info.get(at..at + 4)?.try_into().ok()?));
        // `XT_CONNTRACK_STATE_BIT`: established, related, new from bit 1 on.
        let state: u16 = if self.is_answer { 1 << 1 } else { 1 << 3 };
        match name {
            "comment" => Some(true),
            "mark" => {
                let is_set = self.mark & u32_at(4)? == u32_at(0)?;
                Some(is_set != (*info.get(8)? != 0))
            }
            "state" => Some(u32_at(0)? & u32::from(state) != 0),
            // `struct xt_conntrack_mtinfo3`, if it compares the state, and perhaps the direction, only.
            "conntrack" => {
                const STATE: u16 = 1 << 0;
                const DIRECTION: u16 = 1 << 12;
                let (flags, inverted) = (u16_at(146)?, u16_at(148)?);
                let in_state = (u16_at(150)? & state != 0) != (inverted & STATE != 0);
                // Without inversion, the original direction.
                let in_direction = self.is_answer == (inverted & DIRECTION != 0);
                match flags {
                    STATE => Some(in_state),
                    _ if flags == STATE | DIRECTION => Some(in_state && in_direction),
                    _ => None,
                }
            }
            // `struct xt_addrtype_info_v1`: masks of types of the source and of the destination.
            "addrtype" if self.is_for_this_node && u16_at(0)? == 0 && u32_at(4)? == 0 => {
                Some(u16_at(2)? & (1 << RTN_LOCAL) != 0)
            }
            // `struct xt_multiport_v1`: flags, count, ports, which of them begin a range, inversion.
            "multiport" => {
                let (kind, count) = (*info.first()?, usize::from(*info.get(1)?));
                let ports: &[u16] = match kind {
                    0 => &[self.source.port()],
                    1 => &[self.destination.port()],
                    _ => &[self.source.port(), self.destination.port()],
                };
                let mut is_in = false;
                for index in 0..count.min(15) {
                    let first = u16_at(2 + 2 * index)?;
                    let last = match *info.get(32 + index)? {
                        0 => first,
                        _ => u16_at(4 + 2 * index)?,
                    };
                    is_in |= ports.iter().any(|port| (first..=last).contains(port));
                }
                Some(is_in != (*info.get(47)? != 0))
            }
            // `struct xt_tcp` and `struct xt_udp` begin with the ranges of ports; the flags that invert are last.
            "tcp" | "udp" => {
                let (inverting, has_flags) = match name {
                    "tcp" => (*info.get(11)?, *info.get(8)? != 0 || *info.get(9)? != 0),
                    _ => (*info.get(8)?, false),
                };
                let port = |at: usize, port: u16, bit: u8| {
                    let is_in = u16_at(at)? <= port && port <= u16_at(at + 2)?;
                    Some(is_in != (inverting & bit != 0))
                };
                let ports = port(0, self.source.port(), 1)? && port(4, self.destination.port(), 2)?;
                if ports && has_flags {
                    None
                } else {
                    Some(ports)
                }
            }
            _ => None,
        }
    }
}

//! A packet socket that receives all netlink messages to the kernel in its namespace.

use std::io::IoSliceMut;
use std::os::fd::AsRawFd as _;
use std::time::Duration;

use anyhow::Context as _;
use nix::sys::socket::{ControlMessageOwned, LinkAddr, MsgFlags, recvmsg, setsockopt, sockopt};
use socket2::{Domain, Protocol, SockFilter, Socket, Type};

/// The room for messages that wait to be read, in bytes.
const ROOM: usize = 256 << 20;

/// The greatest number of bytes that are read of one `send`.
const LONGEST: usize = 8 << 20;

// Instructions of include/uapi/linux/bpf_common.h.
const LOAD_WORD: u16 = 0x20;
const LOAD_BYTE: u16 = 0x30;
const JUMP_IF_EQUAL: u16 = 0x15;
const JUMP_IF_SET: u16 = 0x45;
const RETURN: u16 = 0x06;
/// The offset that stands for the type of the packet's device (include/uapi/linux/filter.h).
const DEVICE_TYPE: u32 = 28_u32.wrapping_sub(0x1000);
/// The type of `nlmon` devices.
const ARPHRD_NETLINK: u32 = 824;
/// The offset of the byte with the flag NLM_F_REQUEST in a netlink message.
const FLAGS: u32 = if cfg!(target_endian = "little") { 6 } else { 7 };
const NLM_F_REQUEST: u32 = 1;

/// The socket and its buffer.
pub(super) struct PacketSocket {
    socket: Socket,
    buffer: Vec<u8>,
    control: Vec<u8>,
}

/// The bytes of one `send` to the kernel.
pub(super) struct Received<'a> {
    pub(super) bytes: &'a [u8],
    /// The netlink protocol, such as `NETLINK_ROUTE`.
    pub(super) protocol: u16,
    /// Since 1970.
    pub(super) time: Duration,
    /// The number of packets so far that found no room.
    pub(super) lost: u64,
}

impl PacketSocket {
    pub(super) fn open() -> anyhow::Result<Self> {
        // ETH_P_ALL in network order.
        let all = Protocol::from(i32::from(3_u16.to_be()));
        let socket = Socket::new(Domain::PACKET, Type::RAW, Some(all))
            .context("opening a packet socket (are you root?)")?;
        socket.attach_filter(&[
            SockFilter::new(LOAD_WORD, 0, 0, DEVICE_TYPE),
            SockFilter::new(JUMP_IF_EQUAL, 0, 3, ARPHRD_NETLINK),
            // Answers and notifications of the kernel lack the flag.
            SockFilter::new(LOAD_BYTE, 0, 0, FLAGS),
            SockFilter::new(JUMP_IF_SET, 0, 1, NLM_F_REQUEST),
            SockFilter::new(RETURN, 0, 0, u32::MAX),
            SockFilter::new(RETURN, 0, 0, 0),
        ])?;
        // Forced past the limit `net.core.rmem_max`, which is 208 KiB by default.
        setsockopt(&socket, sockopt::RcvBufForce, &ROOM)?;
        setsockopt(&socket, sockopt::ReceiveTimestampns, &true)?;
        setsockopt(&socket, sockopt::RxqOvfl, &1)?;
        Ok(Self {
            socket,
            buffer: vec![0; LONGEST],
            control: nix::cmsg_space!(nix::sys::time::TimeSpec, u32),
        })
    }

    /// Returns the next packet, if one waits.
    pub(super) fn receive(&mut self) -> Option<Received<'_>> {
        let mut parts = [IoSliceMut::new(&mut self.buffer)];
        let (flags, control) = (MsgFlags::MSG_DONTWAIT, Some(&mut *self.control));
        let message =
            recvmsg::<LinkAddr>(self.socket.as_raw_fd(), &mut parts, control, flags).ok()?;
        let (mut time, mut lost) = (Duration::ZERO, 0);
        for control in message.cmsgs().ok()? {
            match control {
                ControlMessageOwned::ScmTimestampns(at) => time = at.into(),
                ControlMessageOwned::RxqOvfl(number) => lost = number.into(),
                _ => {}
            }
        }
        let length = message.bytes;
        // `__netlink_deliver_tap_skb` stores the protocol in network order.
        let protocol = message.address.map_or(u16::MAX, |from| from.protocol());
        Some(Received {
            protocol: u16::from_be(protocol),
            bytes: &self.buffer[..length],
            time,
            lost,
        })
    }
}

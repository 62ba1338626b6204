//! The netlink requests of the lab itself: look up IPVS, set `lo` up, read the state of a link.
//!
//! They do not use `ipvs-netlink`: the lab must work while that crate is broken.

use std::io;

use rustix::net::{
    AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType,
    netlink::{self, SocketAddrNetlink},
    recv, sendto, socket_with,
};

/// Sets the loopback device of the calling thread's network namespace up.
pub(crate) fn bring_loopback_up() -> io::Result<()> {
    // struct ifinfomsg: family, type, index, flags, mask of flags. `lo` is 1 in every namespace.
    let mut body = vec![0; 4];
    body.extend(1_i32.to_ne_bytes());
    body.extend(IFF_UP.to_ne_bytes());
    body.extend(IFF_UP.to_ne_bytes());
    request(None, RTM_NEWLINK, NLM_F_ACK, &body).map(drop)
}

/// Returns whether the kernel has the generic netlink family `name`.
///
/// The kernel loads the module if it can.
pub(crate) fn has_generic_family(name: &str) -> io::Result<bool> {
    // struct genlmsghdr: command, version, padding.
    let mut body = vec![CTRL_CMD_GETFAMILY, 1, 0, 0];
    put_text(&mut body, CTRL_ATTR_FAMILY_NAME, name)?;
    match request(Some(netlink::GENERIC), GENL_ID_CTRL, 0, &body) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Returns whether `device` of the calling thread's network namespace passes packets.
///
/// The kernel's link watch sets the flag (`IFF_RUNNING`) some time after the device is up. Packets
/// are lost until then.
pub(crate) fn is_running(device: &str) -> io::Result<bool> {
    let mut body = vec![0; 16];
    put_text(&mut body, IFLA_IFNAME, device)?;
    let answer = request(None, RTM_GETLINK, 0, &body)?;
    let flags = answer.get(HEADER + 8..HEADER + 12).ok_or_else(short)?;
    let flags = flags.try_into().map(u32::from_ne_bytes);
    Ok(flags.map_err(|_| short())? & IFF_RUNNING != 0)
}

/// Appends a text attribute, padded to four bytes.
fn put_text(body: &mut Vec<u8>, kind: u16, text: &str) -> io::Result<()> {
    let length = u16::try_from(4 + text.len() + 1).map_err(io::Error::other)?;
    body.extend(length.to_ne_bytes());
    body.extend(kind.to_ne_bytes());
    body.extend(text.as_bytes());
    body.push(0);
    body.resize(body.len().next_multiple_of(4), 0);
    Ok(())
}

/// Sends one request and returns the answer, or the error in it.
///
/// `protocol` is `None` for routing.
fn request(protocol: Option<Protocol>, kind: u16, flags: u16, body: &[u8]) -> io::Result<Vec<u8>> {
    let socket = socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        protocol,
    )?;
    let length = u32::try_from(HEADER + body.len()).map_err(io::Error::other)?;
    let mut message = Vec::new();
    message.extend(length.to_ne_bytes());
    message.extend(kind.to_ne_bytes());
    message.extend((NLM_F_REQUEST | flags).to_ne_bytes());
    // Sequence number and port are unused: there is one request at a time.
    message.extend([0; 8]);
    message.extend(body);
    let kernel = SocketAddrNetlink::new(0, 0);
    sendto(&socket, &message, SendFlags::empty(), &kernel)?;

    let mut answer = vec![0; 8192];
    let (length, _) = recv(&socket, answer.as_mut_slice(), RecvFlags::empty())?;
    answer.truncate(length);
    error_of(&answer)?;
    Ok(answer)
}

/// Returns the error that an answer carries.
fn error_of(answer: &[u8]) -> io::Result<()> {
    let kind = answer.get(4..6).ok_or_else(short)?;
    if kind != NLMSG_ERROR.to_ne_bytes() {
        return Ok(());
    }
    let code = answer.get(HEADER..HEADER + 4).ok_or_else(short)?;
    let code = code
        .try_into()
        .map(i32::from_ne_bytes)
        .map_err(|_| short())?;
    match code {
        0 => Ok(()),
        code => Err(io::Error::from_raw_os_error(-code)),
    }
}

fn short() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "a truncated netlink answer")
}

// include/uapi/linux/{netlink,rtnetlink,genetlink,if}.h
const HEADER: usize = 16;
const NLM_F_REQUEST: u16 = 0x01;
const NLM_F_ACK: u16 = 0x04;
const NLMSG_ERROR: u16 = 0x02;
const RTM_NEWLINK: u16 = 16;
const RTM_GETLINK: u16 = 18;
const IFLA_IFNAME: u16 = 3;
const GENL_ID_CTRL: u16 = 0x10;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;
const IFF_UP: u32 = 0x1;
const IFF_RUNNING: u32 = 0x40;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lo_is_running_and_a_missing_device_is_an_error() {
        assert!(is_running("lo").unwrap());
        assert!(is_running("no-such-device").is_err());
    }

    #[test]
    fn only_existing_families_are_found() {
        assert!(has_generic_family("nlctrl").unwrap());
        assert!(!has_generic_family("no-such-family").unwrap());
    }

    #[test]
    fn an_error_answer_becomes_an_error() {
        let mut answer = vec![20, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        assert!(error_of(&answer).is_err());
        answer.extend((-1_i32).to_ne_bytes());
        let error = error_of(&answer).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
        answer[4] = 16;
        assert!(error_of(&answer).is_ok());
    }
}

//! A socket filter that lets only the notifications pass that concern service addresses.
//!
//! A node with many Pods creates and deletes hundreds of devices, routes and addresses per minute. The
//! kernel runs this program (classic BPF, `Documentation/networking/filter.rst`) for each notification
//! before it queues it, so that the others do not wake up this process.

use std::net::Ipv6Addr;
use std::os::fd::AsFd;

use socket2::{SockFilter, SockRef};

use super::link::{IFLA_IFNAME, RTM_DELLINK, RTM_NEWLINK};
use super::rtnetlink::{
    AF_INET, IFA_LABEL, RT_SCOPE_LINK, RT_TABLE_LOCAL, RTM_DELADDR, RTM_DELROUTE, RTM_NEWADDR,
    RTM_NEWROUTE, RTPROT_KERNEL,
};
use crate::dataplane::Failure;
use crate::dataplane::ipvs::op::CARRIER;

// Instructions of include/uapi/linux/bpf_common.h: loads to the accumulator A or to X, a jump, the end.
const LOAD_WORD: u16 = 0x20;
const LOAD_HALF: u16 = 0x28;
const LOAD_BYTE: u16 = 0x30;
const LOAD_WORD_AT_X: u16 = 0x40;
const LOAD_HALF_AT_X: u16 = 0x48;
const LOAD_BYTE_AT_X: u16 = 0x50;
const LOAD_NUMBER: u16 = 0x00;
const LOAD_NUMBER_TO_X: u16 = 0x01;
const COPY_TO_X: u16 = 0x07;
const JUMP_IF_EQUAL: u16 = 0x15;
const RETURN: u16 = 0x06;

/// Loads the offset of the netlink attribute with number X, searched from offset A on; 0 if missing
/// (`SKF_AD_OFF + SKF_AD_NLATTR`).
const ATTRIBUTE: u32 = 12_u32.wrapping_sub(0x1000);

// Offsets in a notification: struct nlmsghdr has 16 bytes, then the header of the message follows.
const TYPE: u32 = 4;
const PORT: u32 = 12;
const BODY: u32 = 16;
const ROUTE_TABLE: u32 = BODY + 4;
const ROUTE_PROTOCOL: u32 = BODY + 5;
const ADDRESS_FAMILY: u32 = BODY;
const ADDRESS_PREFIX_LENGTH: u32 = BODY + 1;
const ADDRESS_SCOPE: u32 = BODY + 3;
const ADDRESS_ATTRIBUTES: u32 = BODY + 8;
const LINK_ATTRIBUTES: u32 = BODY + 16;

// One part of the program compares the name of a device, and the label of an IPv4 address.
const _: () = assert!(IFA_LABEL == IFLA_IFNAME);

const PASS: u32 = u32::MAX;
const DROP: u32 = 0;

/// The place where the program continues after a comparison.
#[derive(Clone, Copy)]
enum To {
    Next,
    /// The end that drops.
    Drop,
    /// The end that passes.
    Pass,
    /// A part of the program, by its first instruction.
    Part(Part),
}

#[derive(Clone, Copy)]
enum Part {
    Route,
    Link,
    Address,
    /// An IPv4 address.
    LabelledAddress,
    /// Expects in A where to search the attribute with the name of the device.
    Name,
}

/// The subject of the notifications that a socket receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Subject {
    /// Local routes that are not the kernel's own, the device `kube-ipvs0`, and addresses on it.
    ///
    /// With the last IPv4 address, the kernel deletes all IPv4 routes of the device (`fib_disable_ip`).
    /// Notifications of IPv6 addresses carry no name of a device. So each deletion of a single address
    /// passes; addresses on the devices of Pods have networks.
    ServiceAddresses,
    /// Addresses of interfaces, without the link-local IPv6 address that each interface has.
    InterfaceAddresses,
}

/// An instruction whose jumps have names.
enum Step {
    Do(u16, u32),
    /// Compares A with a number.
    If(u32, To, To),
    /// The first instruction of a part follows.
    Begin(Part),
}

/// Makes the kernel queue at `socket` only notifications about `subject`, and none that the socket
/// with the netlink port `own` caused.
///
/// # Errors
/// If the kernel refuses the filter.
pub(super) fn attach(socket: &impl AsFd, subject: Subject, own: u32) -> Result<(), Failure> {
    let filter = assemble(&program(subject, own));
    let attached = SockRef::from(socket).attach_filter(&filter);
    attached.map_err(|error| Failure {
        errno: rustix::io::Errno::from_io_error(&error),
        message: format!("filtering notifications of routes and devices: {error}"),
    })
}

fn program(subject: Subject, own: u32) -> Vec<Step> {
    use Step::{Begin, Do, If};
    use To::{Drop, Next, Pass};
    let name: [u8; 11] = name();
    let mut steps = vec![
        Do(LOAD_WORD, PORT),
        If(host_word(own), Drop, Next),
        Do(LOAD_HALF, TYPE),
    ];
    for (kind, part) in [
        (RTM_NEWROUTE, Part::Route),
        (RTM_DELROUTE, Part::Route),
        (RTM_NEWLINK, Part::Link),
        (RTM_DELLINK, Part::Link),
        (RTM_NEWADDR, Part::Address),
        (RTM_DELADDR, Part::Address),
    ] {
        steps.push(If(host_half(kind), To::Part(part), Next));
    }
    steps.extend([
        Do(RETURN, DROP),
        Begin(Part::Route),
        Do(LOAD_BYTE, ROUTE_TABLE),
        If(RT_TABLE_LOCAL.into(), Next, Drop),
        Do(LOAD_BYTE, ROUTE_PROTOCOL),
        If(RTPROT_KERNEL.into(), Drop, Pass),
        Begin(Part::Address),
        Do(LOAD_BYTE, ADDRESS_FAMILY),
    ]);
    steps.extend(match subject {
        Subject::InterfaceAddresses => vec![
            If(AF_INET.into(), Pass, Next),
            Do(LOAD_BYTE, ADDRESS_SCOPE),
            If(RT_SCOPE_LINK.into(), Drop, Pass),
        ],
        Subject::ServiceAddresses => vec![
            If(AF_INET.into(), To::Part(Part::LabelledAddress), Next),
            Do(LOAD_HALF, TYPE),
            If(host_half(RTM_DELADDR), Next, Drop),
            Do(LOAD_BYTE, ADDRESS_PREFIX_LENGTH),
            If(Ipv6Addr::BITS, Pass, Drop),
            Begin(Part::LabelledAddress),
            Do(LOAD_NUMBER, ADDRESS_ATTRIBUTES),
            If(ADDRESS_ATTRIBUTES, To::Part(Part::Name), Drop),
        ],
    });
    steps.extend([
        Begin(Part::Link),
        Do(LOAD_NUMBER, LINK_ATTRIBUTES),
        Begin(Part::Name),
        Do(LOAD_NUMBER_TO_X, IFLA_IFNAME.into()),
        Do(LOAD_WORD, ATTRIBUTE),
        If(0, Drop, Next),
        Do(COPY_TO_X, 0),
        // The value begins 4 bytes after its attribute. Its bytes are compared in network byte order.
        Do(LOAD_WORD_AT_X, 4),
        If(word(&name, 0), Next, Drop),
        Do(LOAD_WORD_AT_X, 8),
        If(word(&name, 4), Next, Drop),
        Do(LOAD_HALF_AT_X, 12),
        If(word(&name, 8) >> 16, Next, Drop),
        Do(LOAD_BYTE_AT_X, 14),
        If(name[10].into(), Pass, Drop),
    ]);
    steps
}

/// Returns the name of the carrier with its final NUL.
fn name() -> [u8; 11] {
    let mut name = [0; 11];
    name[..CARRIER.len()].copy_from_slice(CARRIER.as_bytes());
    name
}

/// Returns four bytes of `name` from `at` on, missing ones as 0, as the kernel loads them.
fn word(name: &[u8], at: usize) -> u32 {
    let bytes = name.iter().skip(at).chain(std::iter::repeat(&0)).take(4);
    bytes.fold(0, |word, &byte| word << 8 | u32::from(byte))
}

/// Returns how the kernel loads a number in host byte order: loads convert from network byte order.
fn host_word(number: u32) -> u32 {
    u32::from_be_bytes(number.to_ne_bytes())
}

fn host_half(number: u16) -> u32 {
    u16::from_be_bytes(number.to_ne_bytes()).into()
}

/// Replaces the names of jumps by distances, and appends both ends.
fn assemble(steps: &[Step]) -> Vec<SockFilter> {
    let is_instruction = |step: &&Step| !matches!(step, Step::Begin(_));
    let length = steps.iter().filter(is_instruction).count();
    let start = |part: Part| {
        let begins = |step: &Step| matches!(step, Step::Begin(it) if *it as u8 == part as u8);
        let before = steps.iter().take_while(|step| !begins(step));
        before.filter(is_instruction).count()
    };
    let mut filter = Vec::with_capacity(length + 2);
    for step in steps.iter().filter(is_instruction) {
        let next = filter.len() + 1;
        let distance = |to: To| {
            let target = match to {
                To::Next => next,
                To::Drop => length,
                To::Pass => length + 1,
                To::Part(part) => start(part),
            };
            // A program has about 40 instructions, and parts follow the jumps to them.
            u8::try_from(target - next).unwrap_or(u8::MAX)
        };
        filter.push(match *step {
            Step::Do(code, number) => SockFilter::new(code, 0, 0, number),
            Step::If(number, yes, no) => {
                SockFilter::new(JUMP_IF_EQUAL, distance(yes), distance(no), number)
            }
            Step::Begin(_) => continue,
        });
    }
    filter.push(SockFilter::new(RETURN, 0, 0, DROP));
    filter.push(SockFilter::new(RETURN, 0, 0, PASS));
    filter
}

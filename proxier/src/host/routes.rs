//! The kernel's answers to "by which device does a packet to this address leave".
//!
//! Layouts from `include/uapi/linux/rtnetlink.h` and `if_link.h`.

use std::net::IpAddr;

use netlink::Result;
use netlink::attr::{Writer, attributes, find};
use netlink::transport::{Transport, protocols};
use rustix::io::Errno;

use crate::dataplane::ipvs::linux::link::{IFLA_IFNAME, IFLA_MTU, RTM_GETLINK};
use crate::dataplane::ipvs::linux::rtnetlink::{
    AF_INET, AF_INET6, RTA_DST, RTA_OIF, RTM_GETROUTE, split, write_address,
};

/// The length of `struct rtmsg`.
const ROUTE_HEADER: usize = 12;
/// The length of `struct ifinfomsg`.
const LINK_HEADER: usize = 16;

/// The way to an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Route {
    /// The name of the device.
    pub(crate) device: String,
    /// The device's MTU.
    pub(crate) mtu: u32,
}

/// A socket that asks for routes.
#[derive(Debug)]
pub(crate) struct Routes(Transport);

impl Routes {
    pub(crate) fn open() -> Result<Self> {
        Ok(Self(Transport::open(protocols::NETLINK_ROUTE)?))
    }

    /// Returns the way to `address`; `None` if the kernel has none.
    pub(crate) fn to(&mut self, address: IpAddr) -> Result<Option<Route>> {
        let body = |writer: &mut Writer<'_>| {
            let (family, bits) = match address {
                IpAddr::V4(_) => (AF_INET, 32),
                IpAddr::V6(_) => (AF_INET6, 128),
            };
            let mut header = [0; ROUTE_HEADER];
            header[..2].copy_from_slice(&[family, bits]);
            writer.header(&header);
            write_address(writer, RTA_DST, address);
        };
        let answer = self
            .0
            .query(RTM_GETROUTE, "looking up a route", body, |message| {
                let (_, contents) = split::<ROUTE_HEADER>(message.payload)?;
                find(attributes(contents), RTA_OIF)?
                    .map(|it| it.u32())
                    .transpose()
            });
        match answer {
            // Also the answers of routes of types unreachable, prohibit and blackhole.
            Err(error) if error.errno().is_some_and(is_missing) => Ok(None),
            Err(error) => Err(error),
            Ok(None) => Ok(None),
            Ok(Some(device)) => self.device(device).map(Some),
        }
    }

    fn device(&mut self, index: u32) -> Result<Route> {
        let body = |writer: &mut Writer<'_>| {
            let mut header = [0; LINK_HEADER];
            header[4..8].copy_from_slice(&index.to_ne_bytes());
            writer.header(&header);
        };
        self.0
            .query(RTM_GETLINK, "reading a device", body, |message| {
                let (_, contents) = split::<LINK_HEADER>(message.payload)?;
                let name = find(attributes(contents), IFLA_IFNAME)?
                    .map(|it| it.string())
                    .transpose()?;
                let mtu = find(attributes(contents), IFLA_MTU)?
                    .map(|it| it.u32())
                    .transpose()?;
                Ok(Route {
                    device: name.unwrap_or_default().to_owned(),
                    mtu: mtu.unwrap_or_default(),
                })
            })
    }
}

fn is_missing(errno: Errno) -> bool {
    let all = [
        Errno::NETUNREACH,
        Errno::HOSTUNREACH,
        Errno::ACCESS,
        Errno::INVAL,
    ];
    all.contains(&errno)
}

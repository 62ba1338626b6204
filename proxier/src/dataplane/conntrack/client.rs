//! The kernel's connection-tracking table.

use std::net::IpAddr;

use netlink::NLA_F_NESTED;
use netlink::attr::Writer;
use netlink::batch::Batch;
use netlink::transport::{RequestError, Transport, protocols};
use netlink::{Errno, Error, Result};

use super::flow::{Flow, read};
use super::stale::{DumpScope, Stale};
use super::sys::*;
use crate::cluster::model::{Family, Protocol};

/// A client of the connection-tracking table of the network namespace in which it was opened.
#[derive(Debug)]
pub struct ConntrackClient {
    transport: Transport,
}

/// The result of a sweep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// The number of flows that the kernel listed.
    pub seen: usize,
    /// The number of flows that were deleted, or that ended before their deletion.
    pub deleted: usize,
    /// The number of flows that stay until their answers had time to arrive.
    pub spared: usize,
}

impl ConntrackClient {
    /// Opens a socket.
    ///
    /// # Errors
    /// [`Error::Socket`].
    pub fn open() -> Result<Self> {
        Ok(Self {
            transport: Transport::open(protocols::NETLINK_NETFILTER)?,
        })
    }

    /// Deletes the flows that `stale` contains.
    ///
    /// A flow that ends before its deletion counts as deleted.
    ///
    /// # Cost
    /// One dump of the table per family and protocol of `stale`, usually one. Since Linux 5.8 the
    /// kernel filters the dump, so flows of other protocols are not copied to us.
    ///
    /// # Errors
    /// Errors of the socket. If the kernel rejects deletions, the first rejection; the other flows
    /// are deleted all the same.
    pub fn sweep(&mut self, stale: &Stale) -> Result<Swept> {
        let mut swept = Swept::default();
        let mut found = Vec::new();
        for scope in stale.scopes() {
            self.each(scope, |flow| {
                swept.seen += 1;
                swept.spared += usize::from(stale.spares(&flow));
                found.extend(Some(flow).filter(|flow| stale.contains(flow)));
            })?;
        }
        // The socket carries one request at a time, so deletions follow the dumps.
        swept.deleted = self.delete(&found)?;
        Ok(swept)
    }

    /// Returns whether the kernel lacks `nf_conntrack_netlink`.
    ///
    /// Then each request fails with `EINVAL` (`nfnetlink_rcv_msg`, Linux 6.1), as a malformed one does.
    /// This request for the number of flows has nothing that could be malformed.
    pub fn is_missing(&mut self) -> bool {
        let kind = (NFNL_SUBSYS_CTNETLINK << 8) | IPCTNL_MSG_CT_GET_STATS;
        let counted = self.transport.query(
            kind,
            "counting the tracked connections",
            |writer| header(writer, Family::V4),
            |_| Ok(()),
        );
        counted.is_err_and(|error| error.is_invalid() || error.is_unsupported())
    }

    /// Returns all flows of `protocol` between addresses of `family`.
    ///
    /// # Errors
    /// Errors of the socket and of the dump.
    pub fn flows(&mut self, family: Family, protocol: Protocol) -> Result<Vec<Flow>> {
        let mut flows = Vec::new();
        self.each_flow(family, protocol, |flow| flows.push(flow))?;
        Ok(flows)
    }

    /// Calls `each` for every flow of `protocol` between addresses of `family`.
    ///
    /// # Errors
    /// As [`ConntrackClient::flows`].
    pub fn each_flow(
        &mut self,
        family: Family,
        protocol: Protocol,
        each: impl FnMut(Flow),
    ) -> Result<()> {
        let scope = DumpScope {
            family,
            protocol,
            source: None,
        };
        self.each(scope, each)
    }

    /// Returns the first `most` flows of `protocol` between addresses of `family` for which `is_wanted` is true.
    ///
    /// # Errors
    /// As [`ConntrackClient::flows`].
    pub(crate) fn first_flows(
        &mut self,
        most: usize,
        (family, protocol): (Family, Protocol),
        is_wanted: impl Fn(&Flow) -> bool,
    ) -> Result<Vec<Flow>> {
        let mut flows = Vec::new();
        self.each_flow(family, protocol, |flow| {
            if flows.len() < most && is_wanted(&flow) {
                flows.push(flow);
            }
        })?;
        Ok(flows)
    }

    /// Calls `each` for every flow of `scope`.
    fn each(&mut self, scope: DumpScope, mut each: impl FnMut(Flow)) -> Result<()> {
        let kind = (NFNL_SUBSYS_CTNETLINK << 8) | IPCTNL_MSG_CT_GET;
        self.transport.dump(
            kind,
            "reading the tracked connections",
            |writer| write_filter(writer, scope),
            // ctnetlink never sets NLM_F_DUMP_INTR. A flow that is listed twice is deleted once;
            // the second deletion returns ENOENT.
            |()| {},
            &mut (),
            |(), message| {
                // The payload begins with 4 bytes of `struct nfgenmsg`.
                let flow = read(message.payload.get(4..).unwrap_or_default())?;
                // Kernels before 5.8 ignore the filter and list flows of all protocols.
                flow.filter(|flow| flow.protocol == scope.protocol)
                    .map(&mut each);
                Ok(())
            },
        )?;
        Ok(())
    }

    /// Deletes `flows` in one batch and returns how many are gone.
    fn delete(&mut self, flows: &[Flow]) -> Result<usize> {
        let mut batch = Batch::new();
        let kind = (NFNL_SUBSYS_CTNETLINK << 8) | IPCTNL_MSG_CT_DELETE;
        for flow in flows {
            batch.push(kind, 0, |writer| write_flow(writer, flow))?;
        }
        let answers = self.transport.run(&mut batch)?;
        let mut deleted = 0;
        let mut failed = Ok(());
        for answer in answers {
            match answer {
                Ok(()) => deleted += 1,
                // The flow ended by itself, or its tuple belongs to a newer flow.
                Err(RequestError::Refused(refusal)) if refusal.errno == Errno::NOENT => {
                    deleted += 1
                }
                Err(answer) => {
                    let error: Error = answer.doing("deleting a stale connection");
                    failed = failed.and(Err(error));
                }
            }
        }
        failed.map(|()| deleted)
    }
}

/// Writes the fixed header of every request, `struct nfgenmsg`.
fn header(writer: &mut Writer<'_>, family: Family) {
    let family = match family {
        Family::V4 => AF_INET,
        Family::V6 => AF_INET6,
    };
    writer.header(&[family, 0, 0, 0]);
}

/// Writes the body of a dump request for the flows of `scope`.
fn write_filter(writer: &mut Writer<'_>, scope: DumpScope) {
    header(writer, scope.family);
    let mut flags = CTA_FILTER_F_CTA_PROTO_NUM;
    writer.nested(CTA_TUPLE_ORIG, |tuple| {
        if let Some(source) = scope.source {
            tuple.nested(CTA_TUPLE_IP, |address| match source.ip() {
                IpAddr::V4(source) => address.bytes(CTA_IP_V4_SRC, &source.octets()),
                IpAddr::V6(source) => address.bytes(CTA_IP_V6_SRC, &source.octets()),
            });
            flags |= CTA_FILTER_F_CTA_IP_SRC;
        }
        tuple.nested(CTA_TUPLE_PROTO, |protocol| {
            protocol.u8(CTA_PROTO_NUM, scope.protocol.number());
            if let Some(source) = scope.source {
                protocol.u16_be(CTA_PROTO_SRC_PORT, source.port());
                flags |= CTA_FILTER_F_CTA_PROTO_SRC_PORT;
            }
        });
    });
    writer.nested(CTA_FILTER, |filter| {
        filter.u32(CTA_FILTER_ORIG_FLAGS, flags);
    });
}

/// Writes the body of a request to delete `flow`.
///
/// The request contains the flow's id, so the kernel rejects it if the tuple belongs to a newer
/// flow by then.
fn write_flow(writer: &mut Writer<'_>, flow: &Flow) {
    header(writer, flow.original.destination.ip().into());
    // Unlike `nested`, `bytes` does not set the flag.
    writer.bytes(CTA_TUPLE_ORIG | NLA_F_NESTED, &flow.handle.original);
    if let Some(id) = flow.handle.id {
        writer.bytes(CTA_ID, &id);
    }
    if let Some(zone) = flow.handle.zone {
        writer.bytes(CTA_ZONE, &zone);
    }
}

//! The answers of a kernel that lacks an nfnetlink subsystem.
//!
//! The lab kernels have nf_tables. They lack the subsystem of passive fingerprints
//! (`CONFIG_NETFILTER_NETLINK_OSF`), and `nfnetlink_rcv_msg` answers alike for all that are missing.

use netlink::batch::Batch;
use netlink::transport::{RequestError, Transport, protocols};
use proxier::testing::conntrack::ConntrackClient;
use rustix::io::Errno;

const NFNL_SUBSYS_OSF: u16 = 5;
const NFNL_MSG_BATCH_BEGIN: u16 = 16;
const NFNL_MSG_BATCH_END: u16 = 17;

#[test]
fn a_missing_subsystem_answers_einval_to_requests_and_eopnotsupp_to_batches() {
    lab::test(|| {
        let mut transport = Transport::open(protocols::NETLINK_NETFILTER).unwrap();
        let kind = NFNL_SUBSYS_OSF << 8;
        let header = [0, 0, 0, 0];
        let asked = transport.query(kind, "asking", |writer| writer.header(&header), |_| Ok(()));
        assert_eq!(asked.unwrap_err().errno(), Some(Errno::INVAL));
        let dumped = transport.dump(
            kind,
            "dumping",
            |writer| writer.header(&header),
            |()| {},
            &mut (),
            |(), _| Ok(()),
        );
        assert_eq!(dumped.unwrap_err().errno(), Some(Errno::INVAL));

        let mut batch = Batch::new();
        // The subsystem is in the last two bytes of `struct nfgenmsg`.
        let frame = [0, 0, 0, 5];
        batch
            .push(NFNL_MSG_BATCH_BEGIN, 0, |writer| writer.header(&frame))
            .unwrap();
        batch
            .push(kind, 0, |writer| writer.header(&header))
            .unwrap();
        batch
            .push(NFNL_MSG_BATCH_END, 0, |writer| writer.header(&frame))
            .unwrap();
        let failures = transport.run_whole(&mut batch, 1).unwrap();
        let is_unsupported = |error: &RequestError| matches!(error, RequestError::Refused(refusal) if refusal.errno == Errno::OPNOTSUPP);
        assert!(
            failures.iter().any(|(_, error)| is_unsupported(error)),
            "{failures:?}"
        );
    });
}

#[test]
fn connection_tracking_is_not_missing_in_the_lab() {
    lab::test(|| assert!(!ConntrackClient::open().unwrap().is_missing()));
}

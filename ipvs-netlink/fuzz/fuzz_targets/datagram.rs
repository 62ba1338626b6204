//! A datagram as it comes from the socket, answering some of a few requests or a dump.

#![no_main]

use ipvs_netlink::transport::decode_datagram;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Some((&count, datagram)) = bytes.split_first() else {
        return;
    };
    // Sequence numbers that wrap, too.
    for first in [0, u32::MAX - 1] {
        let answers = decode_datagram(datagram, first, usize::from(count % 4) + 1);
        // The end of a dump takes a header at least.
        assert!(answers.len() <= datagram.len() / 16);
    }
});

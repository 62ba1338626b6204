//! An arbitrary datagram can be decoded as answers to requests or to a dump without a panic.

#![no_main]

use libfuzzer_sys::fuzz_target;
use netlink::transport::decode_datagram;

fuzz_target!(|bytes: &[u8]| {
    let Some((&count, datagram)) = bytes.split_first() else {
        return;
    };
    // The second value makes the sequence numbers wrap around.
    for first in [0, u32::MAX - 1] {
        let answers = decode_datagram(datagram, first, usize::from(count % 4) + 1);
        // Each end of a dump has a header of 16 bytes.
        assert!(answers.len() <= datagram.len() / 16);
    }
});

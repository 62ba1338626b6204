//! A daemon decoded from arbitrary bytes encodes and decodes to itself.

#![no_main]

use ipvs_netlink::message::{read_daemon, write_daemon};
use libfuzzer_sys::fuzz_target;
use netlink::attr::Attribute;
use netlink::batch::Batch;

fuzz_target!(|bytes: &[u8]| {
    let Ok(daemon) = read_daemon(&attribute(bytes)) else {
        return;
    };
    let mut batch = Batch::new();
    let written = batch.push(16, 0, |writer| write_daemon(writer, &daemon));
    written.expect("all attributes of a daemon have a bounded size");
    let again = read_daemon(&attribute(&batch.as_bytes()[16..]));
    assert_eq!(again.expect("an encoded daemon can be decoded"), daemon);
});

fn attribute(value: &[u8]) -> Attribute<'_> {
    Attribute { kind: 3, value }
}

//! A synchronisation daemon that is read is written and read as the same.

#![no_main]

use ipvs_netlink::attr::Attribute;
use ipvs_netlink::batch::Batch;
use ipvs_netlink::message::{read_daemon, write_daemon};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(daemon) = read_daemon(&attribute(bytes)) else {
        return;
    };
    let mut batch = Batch::new();
    let written = batch.push(16, 0, |writer| write_daemon(writer, &daemon));
    written.expect("no attribute of a daemon can be too long");
    let again = read_daemon(&attribute(&batch.as_bytes()[16..]));
    assert_eq!(again.expect("what is written is read"), daemon);
});

fn attribute(value: &[u8]) -> Attribute<'_> {
    Attribute { kind: 3, value }
}

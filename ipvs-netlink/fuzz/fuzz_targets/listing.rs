//! Any bytes are a listing or an error; a listed virtual server is one of the kernel's.

#![no_main]

use ipvs_netlink::listing::walk;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let _ = walk(bytes, |service, destinations| {
        assert!(service.key.candidates().next().is_some());
        destinations.len() < 100
    });
});

//! `memcpy`, `memmove`, `memcmp` and `bcmp` of C for x86-64, in place of musl's.
//!
//! musl copies with `rep movsq`, whose start takes longer than the copy of a short text, and byte by byte before and
//! after it; it compares byte by byte. Nearly all copies of this program are short: texts, keys, netlink attributes.
//! `perf` saw a quarter of the program's own time in `memcpy` during a first programming of 10,000 x 10. These functions
//! handle 16 bytes at once, and have no loop for most lengths: two accesses, at both ends, cover each length up to twice
//! their size, and may overlap.
//!
//! Compiled code and the standard library call these functions by name, so a program that links this crate has
//! them everywhere. On other targets the crate is empty: glibc has fast ones, and so has musl on ARM.
//!
//! The code is unsafe, because the compiler fixes names, pointers and rules. Each access is within the given
//! length, and the tests try each length up to several steps, at all kinds of overlap.

// Otherwise the compiler may replace a loop by a call of the function that has it.
#![no_builtins]
#![cfg(all(target_arch = "x86_64", any(target_env = "musl", test)))]

mod compare;
mod copy;
// Tests have the names, too, and so run with these functions.
mod exports;

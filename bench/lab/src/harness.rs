//! Tests that run themselves where there is a kernel for them.

use std::{
    any::type_name,
    env, fs,
    io::{Write, stderr},
    panic::resume_unwind,
    path::PathBuf,
    sync::OnceLock,
    thread,
};

use crate::{guest, kernel, netlink, netns};

mod fleet;
mod verdict;

/// Where the tests of this process run.
enum Place {
    /// On the kernel that runs already.
    Here,
    /// On each of these, booted for the purpose.
    Lab(Vec<PathBuf>),
    /// Nowhere, for this reason.
    Nowhere(String),
}

/// Runs `body` as root on a kernel with IPVS, in a network namespace of its own with `lo` up.
///
/// Where this process is root on such a kernel, `body` runs right here, on a thread of its own.
/// Everywhere else the test runs in the [lab](crate): the test binary starts itself again inside,
/// for this one test, and what happens there happens here. `LAB_KERNEL` names the kernel, or several
/// with `:` between them, and then the test must pass on each. Without it, it is the kernel that
/// `lab kernel` built. A kernel boots once in a process, and in there each test is a process.
///
/// A test ends after `LAB_TIMEOUT` seconds (300).
///
/// Call it first in a `#[test]` function: what stands before it runs outside, too. It goes with
/// everything that libtest and nextest do, except `#[should_panic]`.
///
/// # Panics
///
/// When `body` does, with its output; when the kernel or the process inside dies; and when there is
/// no kernel though `LAB_REQUIRED` or `CI` is set. Without these a test without a kernel passes, and
/// says `SKIP` on stderr.
pub fn test<F: FnOnce() + Send>(body: F) {
    guest::play_role();
    let name = test_name::<F>();
    static PLACE: OnceLock<Place> = OnceLock::new();
    match PLACE.get_or_init(place) {
        Place::Here => {
            let entered = netns::on_thread(&name, netns::enter_new, body);
            entered.unwrap_or_else(|error| panic!("entering a network namespace: {error}"));
        }
        Place::Lab(kernels) => {
            let failures: Vec<String> = kernels
                .iter()
                .filter_map(|kernel| fleet::run(kernel, &name).err())
                .collect();
            if !failures.is_empty() {
                fail(failures.join("\n"));
            }
        }
        Place::Nowhere(reason) if must_run() => fail(format!("cannot run {name}: {reason}")),
        Place::Nowhere(reason) => {
            // The handle itself is not captured by libtest: a skip is never silent.
            let _closed = writeln!(stderr().lock(), "SKIP {name}: {reason}");
        }
    }
}

/// The release of the running kernel, as `uname -r` says it; for tests that expect different things
/// of different kernels.
pub fn kernel_release() -> String {
    let uname = rustix::system::uname();
    uname.release().to_string_lossy().into_owned()
}

/// Fails the test with `report` and nothing else: where this was called from tells nobody anything.
fn fail(report: String) -> ! {
    eprintln!("{report}");
    resume_unwind(Box::new(report))
}

fn place() -> Place {
    if is_user_mode_linux() {
        return Place::Here;
    }
    match kernel::named() {
        Ok(kernels) if !kernels.is_empty() => return Place::Lab(kernels),
        Ok(_) => {}
        // Somebody wanted it, so this is not a skip.
        Err(error) => fail(format!("{error:#}")),
    }
    // Asking for the family loads the module, which only root can.
    let is_root = rustix::process::geteuid().is_root();
    if is_root && matches!(netlink::has_generic_family("IPVS"), Ok(true)) {
        return Place::Here;
    }
    match kernel::cached() {
        Ok(Some(kernel)) => Place::Lab(vec![kernel]),
        Ok(None) => Place::Nowhere(format!(
            "no kernel with IPVS that we may use; run `cargo lab kernel` once to build one, or \
             set {} to a User-Mode Linux kernel",
            kernel::VARIABLE
        )),
        Err(error) => Place::Nowhere(format!("{error:#}")),
    }
}

/// The lab is User-Mode Linux, and nobody else's network is in one.
fn is_user_mode_linux() -> bool {
    fs::read_to_string("/proc/cpuinfo").is_ok_and(|text| text.contains("User Mode Linux"))
}

fn must_run() -> bool {
    let is_set = |name, values: &[&str]| env::var(name).is_ok_and(|it| values.contains(&&*it));
    is_set("LAB_REQUIRED", &["1", "true"]) || is_set("CI", &["1", "true"])
}

/// The name that libtest knows the running test by.
fn test_name<F>() -> String {
    match thread::current().name() {
        Some(name) if name != "main" => name.into(),
        // With one thread for all tests libtest uses its own. The closure that a test passes is
        // called after the test: `crate::module::test::{{closure}}`.
        _ => closure_owner(type_name::<F>()),
    }
}

fn closure_owner(closure: &str) -> String {
    let path = closure.strip_suffix("::{{closure}}").unwrap_or(closure);
    path.split_once("::")
        .map_or(path, |(_crate, test)| test)
        .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closure_names_its_test() {
        fn name<F: FnOnce()>(_: F) -> String {
            closure_owner(type_name::<F>())
        }
        assert_eq!(
            name(|| ()),
            "harness::tests::a_closure_names_its_test",
            "as libtest names this test"
        );
        assert_eq!(
            test_name::<()>(),
            "harness::tests::a_closure_names_its_test"
        );
    }
}

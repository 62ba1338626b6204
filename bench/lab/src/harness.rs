//! Tests that run on a kernel with IPVS.

use std::{
    any::type_name,
    env, fs,
    io::{Write, stderr},
    num::NonZero,
    panic::resume_unwind,
    path::PathBuf,
    sync::OnceLock,
    thread,
};

use crate::{guest, kernel, netlink, netns};

mod fleet;
mod transcript;
mod verdict;

/// The kernels that run the tests of this process.
enum Kernels {
    /// The running kernel.
    Running,
    /// Each of these lab kernels.
    Lab(Vec<PathBuf>),
    /// No kernel is available, for this reason.
    None(String),
}

/// Runs `body` as root on a kernel with IPVS, in a new network namespace.
///
/// `lo` is up in it. If this process is root on such a kernel, `body` runs on a new thread of this
/// process. Otherwise this test binary runs again on a lab kernel, for this one test. The result
/// and output there become those of this test. A process boots each kernel once, and each test is a
/// process of the guest.
///
/// `LAB_KERNEL` names one kernel, or several separated by `:`; the test must pass on each, and runs on
/// all of them at the same time. Without it, the kernel is the one that `lab kernel` built.
///
/// The lab kills a test after `LAB_TIMEOUT` seconds. Without it the limit is 300 s, scaled like
/// [`patience`](crate::patience).
///
/// Call this first in a `#[test]` function: statements before the call also run on the host. All
/// features of libtest and nextest work, except `#[should_panic]`.
///
/// # Panics
///
/// If `body` panics, with its output; if the guest's kernel or process dies. If there is no kernel,
/// the test panics where `LAB_REQUIRED` or `CI` is set; elsewhere it passes and prints `SKIP` on
/// stderr.
pub fn test<F: FnOnce() + Send>(body: F) {
    guest::play_role();
    let name = test_name::<F>();
    static KERNELS: OnceLock<Kernels> = OnceLock::new();
    match KERNELS.get_or_init(kernels) {
        Kernels::Running => {
            let entered = netns::on_thread(&name, netns::enter_new, body);
            entered.unwrap_or_else(|error| panic!("entering a network namespace: {error}"));
        }
        Kernels::Lab(kernels) => {
            let failures = failures_on(kernels, &name);
            if !failures.is_empty() {
                fail(failures.join("\n"));
            }
        }
        Kernels::None(reason) if must_run() => fail(format!("cannot run {name}: {reason}")),
        Kernels::None(reason) => {
            // libtest does not capture the handle itself, so a skip is never silent.
            let _closed = writeln!(stderr().lock(), "SKIP {name}: {reason}");
        }
    }
}

/// Runs the test called `name` on all kernels at once. Returns the failures.
fn failures_on(kernels: &[PathBuf], name: &str) -> Vec<String> {
    // A machine has one processor of the host, and many tests sleep half of their time.
    let at_once = test_threads().div_ceil(kernels.len());
    thread::scope(|scope| {
        let runs: Vec<_> = (kernels.iter())
            .map(|kernel| scope.spawn(move || fleet::run(kernel, name, at_once)))
            .collect();
        let results = runs.into_iter().map(|run| run.join());
        let results = results.map(|result| result.unwrap_or_else(|panic| resume_unwind(panic)));
        results.filter_map(Result::err).collect()
    })
}

/// Returns how many tests libtest runs at once.
fn test_threads() -> usize {
    let number = env::var("RUST_TEST_THREADS").ok();
    let number = number.and_then(|number| number.parse().ok());
    number
        .or_else(|| thread::available_parallelism().ok())
        .map_or(1, NonZero::get)
}

/// Returns the release of the running kernel, as `uname -r` prints it.
pub fn kernel_release() -> String {
    let uname = rustix::system::uname();
    uname.release().to_string_lossy().into_owned()
}

/// Fails the test with `report` alone; the location of this code would not help the reader.
fn fail(report: String) -> ! {
    eprintln!("{report}");
    resume_unwind(Box::new(report))
}

fn kernels() -> Kernels {
    if is_user_mode_linux() {
        return Kernels::Running;
    }
    match kernel::named() {
        Ok(kernels) if !kernels.is_empty() => return Kernels::Lab(kernels),
        Ok(_) => {}
        // LAB_KERNEL is wrong, so this is not a skip.
        Err(error) => fail(format!("{error:#}")),
    }
    // The request for the family loads the module, and only root may load it.
    let is_root = rustix::process::geteuid().is_root();
    if is_root && matches!(netlink::has_generic_family("IPVS"), Ok(true)) {
        return Kernels::Running;
    }
    match kernel::cached() {
        Ok(Some(kernel)) => Kernels::Lab(vec![kernel]),
        Ok(None) => Kernels::None(format!(
            "no kernel with IPVS that this user may use; build one by `cargo lab kernel` or set \
             {} to a User-Mode Linux kernel",
            kernel::VARIABLE
        )),
        Err(error) => Kernels::None(format!("{error:#}")),
    }
}

/// Returns whether this process runs in a lab kernel, where no other program uses the network.
fn is_user_mode_linux() -> bool {
    fs::read_to_string("/proc/cpuinfo").is_ok_and(|text| text.contains("User Mode Linux"))
}

/// Returns whether a test without a kernel must fail.
fn must_run() -> bool {
    let is_set = |name, values: &[&str]| env::var(name).is_ok_and(|it| values.contains(&&*it));
    is_set("LAB_REQUIRED", &["1", "true"]) || is_set("CI", &["1", "true"])
}

/// Returns libtest's name of the running test.
fn test_name<F>() -> String {
    match thread::current().name() {
        Some(name) if name != "main" => name.into(),
        // With one thread for all tests libtest uses its main thread. The type of the test's closure
        // has the test's name: `crate::module::test::{{closure}}`.
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
    fn a_closure_has_the_name_of_its_test() {
        fn name<F: FnOnce()>(_: F) -> String {
            closure_owner(type_name::<F>())
        }
        assert_eq!(
            name(|| ()),
            "harness::tests::a_closure_has_the_name_of_its_test",
            "as libtest names this test"
        );
        assert_eq!(
            test_name::<()>(),
            "harness::tests::a_closure_has_the_name_of_its_test"
        );
    }
}

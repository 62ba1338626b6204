//! A panic in any thread ends the process.

use std::io::Write as _;

/// The exit code after a panic, as of a panic in `main`.
const EXIT_CODE: i32 = 101;

/// Makes a panic in any thread end the process with exit code 101, after the panic's message.
///
/// By default only the thread ends, and the other threads continue. Without the watch threads, for
/// example, the daemon would keep an outdated plan for ever, while health checks succeed. kubelet
/// restarts a container that exits, and the next process continues from the kernel's state.
pub fn exit_on_panic() {
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        print(panic);
        let thread = std::thread::current();
        // Standard error may be closed; the exit code remains.
        let _ = writeln!(
            std::io::stderr(),
            "ipvs-proxier: thread '{}' panicked, which is a bug; exiting with code {EXIT_CODE}. The \
             kernel keeps its state and continues to serve; restart the program",
            thread.name().unwrap_or("<unnamed>")
        );
        std::process::exit(EXIT_CODE);
    }));
}

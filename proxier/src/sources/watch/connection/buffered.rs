//! A TCP connection that is read in large pieces.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, BufReader, ReadBuf};
use tokio::net::TcpStream;

/// The number of bytes that are read at once, if so many have arrived.
///
/// rustls reads at most 4 KiB at once, so that each TLS record of 16 KiB would take five system calls. Each
/// open connection keeps a buffer: one in all with HTTP/2, one per followed kind with HTTP/1.1.
const READ_AT_ONCE: usize = 64 << 10;

/// A TCP connection with a buffer for bytes that arrived.
#[derive(Debug)]
pub(super) struct BufferedTcp(BufReader<TcpStream>);

impl BufferedTcp {
    /// Buffers what arrives on `stream`.
    pub(super) fn new(stream: TokioIo<TcpStream>) -> TokioIo<Self> {
        let reader = BufReader::with_capacity(READ_AT_ONCE, stream.into_inner());
        TokioIo::new(Self(reader))
    }
}

impl Connection for BufferedTcp {
    fn connected(&self) -> Connected {
        self.0.get_ref().connected()
    }
}

impl AsyncRead for BufferedTcp {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl AsyncWrite for BufferedTcp {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::net::TcpListener;
    use std::time::Duration;

    use tokio::io::AsyncReadExt as _;

    use super::*;

    #[test]
    fn a_small_read_takes_all_that_arrived() {
        const SENT: usize = 40 << 10;
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let client = TcpStream::connect(address).await.unwrap();
            let (mut server, _) = listener.accept().unwrap();
            server.write_all(&[7; SENT]).unwrap();
            while rustix::io::ioctl_fionread(&client).unwrap() < SENT as u64 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            let mut stream = BufferedTcp::new(TokioIo::new(client)).into_inner();
            let mut part = [0; 4 << 10];
            stream.read_exact(&mut part).await.unwrap();
            let left = rustix::io::ioctl_fionread(stream.0.get_ref()).unwrap();
            assert_eq!(
                left, 0,
                "bytes that the next read must fetch from the kernel"
            );
            let mut rest = vec![0; SENT - part.len()];
            stream.read_exact(&mut rest).await.unwrap();
            assert!(rest.iter().chain(&part).all(|&byte| byte == 7));
        });
    }
}

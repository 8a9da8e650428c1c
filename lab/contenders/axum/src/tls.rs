//! HTTPS for axum: its low-level rustls example, with hyper-util's graceful shutdown.

use std::net::Ipv4Addr;

use axum::Router;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use crate::settings::Tls;
use crate::terminated;

/// Serves until SIGTERM, and then until the requests in progress are answered.
pub async fn serve(tls: Tls, app: Router) {
    let listener =
        TcpListener::bind((Ipv4Addr::LOCALHOST, tls.port)).await.expect("the TLS port is free");
    let acceptor = TlsAcceptor::from(tls.config);
    let graceful = GracefulShutdown::new();
    tokio::select! {
        () = accept(&listener, &acceptor, &app, &graceful) => {}
        () = terminated() => {}
    }
    drop(listener);
    graceful.shutdown().await;
}

async fn accept(
    listener: &TcpListener,
    acceptor: &TlsAcceptor,
    app: &Router,
    graceful: &GracefulShutdown,
) {
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        let _ = stream.set_nodelay(true);
        tokio::spawn(connect(stream, acceptor.clone(), app.clone(), graceful.watcher()));
    }
}

async fn connect(stream: TcpStream, acceptor: TlsAcceptor, app: Router, watcher: Watcher) {
    let Ok(stream) = acceptor.accept(stream).await else { return };
    let builder = auto::Builder::new(TokioExecutor::new());
    let connection =
        builder.serve_connection_with_upgrades(TokioIo::new(stream), TowerToHyperService::new(app));
    // A peer that goes away is not this program's error.
    let _ = watcher.watch(connection.into_owned()).await;
}

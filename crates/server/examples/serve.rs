//! Serves a store on a port, for measuring: `serve PORT THREADS POOL`.
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut words = std::env::args().skip(1);
    let port = words.next().ok_or("port")?.parse()?;
    let threads = words.next().ok_or("threads")?.parse()?;
    let pool = words.next().ok_or("pool")?;
    let store = std::sync::Arc::new(everleaf::Store::open(pool.as_ref(), everleaf::Options::default())?);
    everleaf_server::Server::bind(everleaf_server::Config { port, threads, ..Default::default() }, store)?.run()?;
    Ok(())
}

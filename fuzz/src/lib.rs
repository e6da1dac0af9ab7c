#![forbid(unsafe_code)]
//! Code that the fuzz targets share.

/// Splits the input into a stream and its pieces: the first byte is the number of cuts, the next ones are their positions, the rest is the stream.
pub fn cut(data: &[u8]) -> Option<(&[u8], Vec<&[u8]>)> {
    let (&count, data) = data.split_first()?;
    let count = usize::from(count % 16).min(data.len());
    let (cuts, stream) = data.split_at(count);
    let mut cuts: Vec<usize> = cuts.iter().map(|&cut| usize::from(cut) * (stream.len() + 1) / 256).collect();
    cuts.extend([0, stream.len()]);
    cuts.sort_unstable();
    Some((stream, cuts.windows(2).map(|ends| &stream[ends[0]..ends[1]]).collect()))
}

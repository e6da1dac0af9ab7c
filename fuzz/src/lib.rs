#![forbid(unsafe_code)]
//! What fuzz targets share.

/// A stream, and the pieces into which it is cut: the first byte says how many cuts there are, the next ones where; the rest is the stream.
pub fn cut(data: &[u8]) -> Option<(&[u8], Vec<&[u8]>)> {
    let (&count, data) = data.split_first()?;
    let count = usize::from(count % 16).min(data.len());
    let (cuts, stream) = data.split_at(count);
    let mut cuts: Vec<usize> = cuts.iter().map(|&cut| usize::from(cut) * (stream.len() + 1) / 256).collect();
    cuts.extend([0, stream.len()]);
    cuts.sort_unstable();
    Some((stream, cuts.windows(2).map(|ends| &stream[ends[0]..ends[1]]).collect()))
}

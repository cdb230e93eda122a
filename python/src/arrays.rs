//! A batch as numpy arrays.
//!
//! Comes in: the blocks of a batch. Goes out: C-contiguous arrays that own their memory. Holds: making the arrays
//! copies nothing of what was collected.

use numpy::IntoPyArray;
use numpy::ndarray::{Array1, Array2};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use tokenmill::block::{Batch, Block};

/// What a batch is to have.
#[derive(Clone, Copy)]
pub struct Fields {
    /// Labels are the next token's id, for losses that don't shift by themselves.
    pub shift_labels: bool,
    /// Where documents begin, for attention over sequences of different lengths.
    pub cu_seqlens: bool,
}

/// A batch of B blocks of S tokens, row by row.
pub struct Arrays {
    shape: (usize, usize),
    input_ids: Vec<i64>,
    labels: Vec<i64>,
    position_ids: Vec<i64>,
    segment_ids: Vec<i32>,
    cu_seqlens: Option<(Vec<i32>, i64)>,
}

impl Arrays {
    pub fn new(batch: &Batch, fields: Fields) -> Self {
        let size = batch.blocks.first().map_or(0, |block| block.input_ids.len());
        let room = batch.blocks.len() * size;
        let mut arrays = Arrays {
            shape: (batch.blocks.len(), size),
            input_ids: Vec::with_capacity(room),
            labels: Vec::with_capacity(room),
            position_ids: Vec::with_capacity(room),
            segment_ids: Vec::with_capacity(room),
            cu_seqlens: fields.cu_seqlens.then(|| (vec![0], 0)),
        };
        for block in &batch.blocks {
            arrays.push(block, size, fields.shift_labels);
        }
        arrays
    }

    fn push(&mut self, block: &Block, size: usize, shift_labels: bool) {
        self.input_ids.extend(block.input_ids.iter().map(|id| i64::from(*id)));
        self.labels.extend(if shift_labels { block.shifted_labels() } else { block.labels() });
        if let Some((ends, longest)) = &mut self.cu_seqlens {
            let (begin, own) = (self.position_ids.len() as i32, block.cu_seqlens());
            let lengths = own.windows(2).map(|pair| i64::from(pair[1] - pair[0]));
            *longest = lengths.fold(*longest, i64::max);
            ends.extend(own[1..].iter().map(|end| begin + end));
        }
        for (number, (range, _)) in block.segment_ranges().enumerate() {
            self.position_ids.extend(0..range.len() as i64);
            self.segment_ids.extend(std::iter::repeat_n(number as i32 + 1, range.len()));
        }
        let padding = size - block.tokens();
        self.position_ids.extend(std::iter::repeat_n(0, padding));
        self.segment_ids.extend(std::iter::repeat_n(0, padding));
    }

    pub fn into_dict(self, py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
        let dict = PyDict::new(py);
        let shape = self.shape;
        let two = |values| Array2::from_shape_vec(shape, values).expect("a value for each token").into_pyarray(py);
        dict.set_item("input_ids", two(self.input_ids))?;
        dict.set_item("labels", two(self.labels))?;
        dict.set_item("position_ids", two(self.position_ids))?;
        let segments = Array2::from_shape_vec(shape, self.segment_ids).expect("a value for each token");
        dict.set_item("segment_ids", segments.into_pyarray(py))?;
        if let Some((ends, longest)) = self.cu_seqlens {
            dict.set_item("cu_seqlens", Array1::from_vec(ends).into_pyarray(py))?;
            dict.set_item("max_seqlen", longest)?;
        }
        Ok(dict)
    }
}

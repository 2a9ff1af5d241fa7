// What Python prepares once per convolution, mask and input size (see kernels/plan.py): the order in
// which weights meet a packed copy of the input. The same struct drives the forward product and the
// product back to the input; there, a layer of stride s has s*s phases of outputs, each phase being
// an output channel of its own here ("out" below), written with gaps.
#pragma once
#include <stdint.h>

#include "marks.hpp"

namespace snip {

SNIP_STRUCT ConvPlan {
    int32_t lanes;                       // batch elements side by side: tensors are [N/lanes,C,H,W,lanes]
    int32_t in_channels, in_h, in_w;     // the tensor read
    int32_t out_channels, out_h, out_w;  // the tensor written
    int32_t in_step_h, in_step_w;        // input rows/columns between neighbouring outputs
    int32_t out_step_h, out_step_w;      // output rows/columns between neighbours of one phase
    int32_t grid_h, grid_w;              // outputs of one phase
    int32_t top, left;                   // input row/column of the packed corner for output (0, 0)
    int32_t tile_h, tile_w;              // outputs computed from one packed copy
    int32_t pack_h, pack_w;              // its rows, and its positions per row over all column phases
    int32_t pack_phases;                 // columns are packed by their remainder modulo in_step_w
    int32_t chunks, segments, entries;   // lengths of what follows
    const int32_t* chunk_channel;        // [chunks + 1] into channels
    const int32_t* channels;             // input channels in use, chunk after chunk
    const int32_t* chunk_segment;        // [chunks + 1] into the segments
    const int32_t* segment_out;          // [segments] which out; ascending within a chunk
    const int32_t* segment_entry;        // [segments + 1] into the entries
    const uint8_t* segment_place;        // [segments] FIRST and LAST of its out
    const int32_t* offset;               // [entries] bytes from the packed corner
    const int32_t* order;                // [entries] into the values
    const int32_t* silent;               // outs without any weight
    int32_t silents;
    const int32_t* row;  // [entries] its packed row for output row 0; ascends within a segment if padded
};

SNIP_ENUM SegmentPlace { FIRST = 1, LAST = 2 };

}  // namespace snip

// The launches of a plan: each calls the kernel of the queue's device. Where the program has no such kernel, the Status says so.
#pragma once
#include <span>

#include "based/kernels/common/kernel.h"

namespace based::kernels {
struct Activate;
struct CausalAttentionStep;
struct CausalAttentionTokens;
struct GatedDeltaRule;
struct GatedDeltaRuleOfLayer;
struct Linear;
struct NormAfter;
struct NormBefore;
struct QuantisedLinear;
struct RmsNorm;
struct SelectiveScan;
struct SelectiveScanOfLayer;
struct ShortConv;
struct ShortConvFlush;
struct ShortConvTokens;
struct StepProgram;
struct TaylorAttention;
struct TaylorDeferred;
struct TaylorTokens;
}  // namespace based::kernels

namespace based::decode {

using kernels::Queue;
using kernels::Status;

Status launch(const kernels::RmsNorm&, Queue);
Status launch(const kernels::Linear&, Queue);
Status launch(const kernels::QuantisedLinear&, Queue);
Status launch(const kernels::Activate&, Queue);
Status launch(const kernels::StepProgram&, Queue);

// Steps: one token a row.
Status launch(const kernels::CausalAttentionStep&, Queue);
Status launch(const kernels::GatedDeltaRule&, Queue);
Status launch(const kernels::GatedDeltaRuleOfLayer&, Queue);
Status launch(const kernels::SelectiveScan&, Queue);
Status launch(const kernels::SelectiveScanOfLayer&, Queue);
Status launch(const kernels::ShortConv&, Queue);
Status launch(const kernels::TaylorAttention&, Queue);
Status launch(const kernels::TaylorDeferred&, Queue);

// Pending tokens (decode/pending.h).
Status launch(const kernels::ShortConvFlush&, Queue);

// Several tokens of one sequence.
Status launch(const kernels::CausalAttentionTokens&, Queue);
Status launch(const kernels::ShortConvTokens&, Queue);
Status launch(const kernels::TaylorTokens&, Queue);

// Linear layers in other forms, see kernels/linear/linear.h and linear_step.h.
Status launch_swiglu(const kernels::Linear&, Queue);
Status launch_before_norm(const kernels::Linear&, const kernels::NormAfter&, Queue);
Status launch_swiglu_after_norm(const kernels::Linear&, const kernels::NormBefore&, Queue);
Status launch_conv_after_norm(const kernels::Linear&, const kernels::ShortConv&, const kernels::NormBefore&, Queue);
Status launch_layers_after_norm(std::span<const kernels::Linear> layers, const kernels::NormBefore&, Queue);
Status launch_layers_of_one_row(std::span<const kernels::Linear> layers, Queue);

}  // namespace based::decode

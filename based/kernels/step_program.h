// A recorded step of one text in one kernel. Its layers read 2.7 GB of weights in the order of the layers, and each waits for the one
// before it; as kernels of their own they leave memory idle in between. The program's blocks stay on their multiprocessors and stream the
// weights of all layers ahead, while they wait for each other.
#pragma once
#include <functional>
#include <variant>
#include <vector>

#include "based/kernels/causal_attention.h"
#include "based/kernels/linear.h"
#include "based/kernels/pointwise.h"
#include "based/kernels/short_conv.h"
#include "based/kernels/taylor_deferred.h"

namespace based::kernels::cuda {

struct LinearSwiglu {
  Linear linear;
};
// A kernel launch in a CUDA graph that is being captured.
struct StepLaunch {
  std::variant<RmsNorm, Linear, LinearSwiglu, ShortConv, TaylorAttention, TaylorDeferred, CausalAttentionStep> arguments;
  void* node = nullptr;  // cudaGraphNode_t
};

// While one lives, it notes what the kernels above launch from this thread on capturing streams.
class StepLog {
 public:
  StepLog();
  ~StepLog();
  StepLog(const StepLog&) = delete;
  StepLog& operator=(const StepLog&) = delete;
  const std::vector<StepLaunch>& launches() const { return launches_; }

 private:
  friend void note_launch(StepLaunch, Stream);
  std::vector<StepLaunch> launches_;
  StepLog* outer_;
};

// Replaces every long stretch of noted launches that nothing else of the captured graph comes between by one kernel, which does the same
// to the same memory: one row in bf16 on Hopper, weights that are constant, states that are settled. Whatever else there is stays as it
// is. An output that a later output overlaps, even in part, is taken for memory that was freed in between: nobody reads what is left of it.
// `allocate` gives device memory, aligned to 256 bytes, that lives as long as the graph. Before the graph is instantiated; writes that
// memory, and waits until it is written.
struct StepFusion {
  Status status;
  int launches = 0, kernels = 0;  // replaced, by
};
StepFusion fuse_step(void* graph, const StepLog& log, const std::function<void*(int64_t bytes)>& allocate);

// A step of 2 to 128 texts, under the same conditions: where a layer is followed by a norm that adds its outputs to the residual stream,
// and layers alone read that norm's y, half of the norm goes to the end of the layer before it and half to the end of those after it. What
// a norm reads and gives is taken for read by nobody behind the next norm. `launches` are the kernels of such places, `kernels` what is
// left.
StepFusion fuse_norms(void* graph, const StepLog& log, const std::function<void*(int64_t bytes)>& allocate);

}  // namespace based::kernels::cuda

// What the launchers of kernels that a step's program knows tell the log (step_program.h).
#pragma once
#include "based/kernels/step_program.h"

namespace based::kernels::cuda {

// After the launch. Nothing where this thread has no log, or the stream does not capture.
void note_launch(StepLaunch launch, Stream stream);

namespace detail {
// A launch's status, which the log has been told of.
template <typename Params>
Status noted(const Params& p, Stream stream, Status status) {
  if (status.ok()) note_launch({p, nullptr}, stream);
  return status;
}
}  // namespace detail

}  // namespace based::kernels::cuda

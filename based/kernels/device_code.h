// Which of the code that a program was compiled with a GPU runs.
#pragma once

namespace based::kernels::cuda {

// Whether the current device runs the code for sm_90a: it is a Hopper, and the driver has loaded that code. The one question by which
// launchers choose between Hopper's kernels and the generic ones.
bool runs_hopper_code();

// On a Hopper that does not run it, what to tell the user, as a static string; else null.
const char* missing_code();

}  // namespace based::kernels::cuda

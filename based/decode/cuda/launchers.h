#pragma once

namespace based::decode {

void set_launchers();  // see `launcher` in step_kernel.h

}  // namespace based::decode

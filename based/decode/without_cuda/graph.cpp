#include "based/decode/record.h"

namespace based::decode {

Backend cuda_backend() { return {}; }

}  // namespace based::decode

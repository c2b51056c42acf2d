#pragma once
#include <zstd.h>

#include <string>

namespace based {

// Compresses as the zstd program does, with a checksum of the content.
inline std::string compressed(const std::string& text) {
  std::string out(ZSTD_compressBound(text.size()) + 64, '\0');
  ZSTD_CCtx* context = ZSTD_createCCtx();
  ZSTD_CCtx_setParameter(context, ZSTD_c_checksumFlag, 1);
  out.resize(ZSTD_compress2(context, out.data(), out.size(), text.data(), text.size()));
  ZSTD_freeCCtx(context);
  return out;
}

}  // namespace based

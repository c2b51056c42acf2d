// Loading a model's folder: all checks of the file, its hash and the copy into the model's memory, with the file in the page cache.
#include <filesystem>

#include "based/core/files.h"
#include "based/core/folders.h"
#include "based/core/temporaries.h"
#include "based/models/weights.h"
#include "bench/model.h"

namespace based::bench {
namespace load_case {

// A folder in TMPDIR that is removed at the end.
struct Folder {
  std::string path = temporary_sibling(temporary_folder() + "/based-bench-load");
  Folder() { make_folder(path); }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
};

void run(Context& context) {
  const torch::InferenceMode inference;
  const BenchModel bench = verified_model(context);
  const Folder folder;
  save_model(*bench.model, folder.path);
  {
    const LoadedModel loaded = load_model(folder.path);
    const auto weights = loaded.model->named_parameters();
    for (const auto& item : bench.model->named_parameters())
      verify(weights[item.key()].to(torch::kFloat), item.value().to(torch::kFloat), 0, "loaded " + item.key());
  }
  const double seconds = median_seconds([&] { load_model(folder.path); }, 3);
  const double bytes = static_cast<double>(MappedFile(folder.path + "/model.safetensors").bytes().size());
  const double floor = 2 * bytes / (context.ceilings.copy_gb_s() * 1e9);
  context.add({"load",
               bench.name,
               seconds * 1e3,
               "ms",
               floor * 1e3,
               floor / seconds,
               "file copied once at " + std::to_string(static_cast<int64_t>(context.ceilings.copy_gb_s())) + " GB/s",
               0,
               {{"gb_per_s", bytes / seconds * 1e-9}}});
}

}  // namespace load_case

const Case case_load{"load", "based-360m from its folder, with every check and its hash", load_case::run};

}  // namespace based::bench

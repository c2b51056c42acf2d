#include "based/c/handles.h"

namespace based::c {
namespace {

constexpr const char* kInMemory = "the state";  // its name in errors

based_state* new_state(std::shared_ptr<Loaded> loaded, SequenceState sequence) {
  return new based_state{std::move(loaded), std::make_shared<const SequenceState>(std::move(sequence))};
}

}  // namespace
}  // namespace based::c

using namespace based::c;

based_status based_state_read(based_model* model, const based_prompt* prompt, based_progress progress, void* context, based_state** state) {
  return guarded([&] {
    require(model, "based_state_read: model");
    require(prompt, "based_state_read: prompt");
    require(state, "based_state_read: state");
    Loaded& loaded = *model->loaded;
    const ModelCall call(loaded);
    based::TextRequest request = request_of(loaded, *prompt, "based_state_read");
    const size_t tokens = request.ids.size() + (request.state ? request.state->ids.size() : 0);
    EngineLease engine(loaded, {}, static_cast<int64_t>(tokens));
    const based::SequenceOptions kept{.keep_state = true};
    int64_t sequence = 0;
    if (request.state) {
      request.state->ids.insert(request.state->ids.end(), request.ids.begin(), request.ids.end());
      sequence = engine->add(std::move(*request.state), kept);
    } else {
      sequence = engine->add(std::move(request.ids), kept);
    }
    const int64_t before = engine->tokens_read();
    engine->read([&] {
      if (progress != nullptr && progress(context, engine->tokens_read() - before) != 0) throw based::Error(kStopped);
    });
    based::SequenceState read = engine->snapshot(sequence);
    based::require_finite_logits(loaded.model(), read);
    engine->remove(sequence);
    engine.give_back();
    *state = new_state(model->loaded, std::move(read));
  });
}

based_status based_state_fork(const based_state* state, based_state** fork) {
  return guarded([&] {
    require(state, "based_state_fork: state");
    require(fork, "based_state_fork: fork");
    *fork = new based_state(*state);
  });
}

void based_state_free(based_state* state) { delete state; }

based_status based_state_save(const based_state* state, const char* path) {
  return guarded([&] {
    require(state, "based_state_save: state");
    require(path, "based_state_save: path");
    Loaded& loaded = *state->loaded;
    const ModelCall call(loaded);
    based::require_finite_logits(loaded.model(), *state->sequence);
    based::save_sequence(path, *state->sequence, loaded.text.hash);
  });
}

based_status based_state_load(based_model* model, const char* path, based_state** state) {
  return guarded([&] {
    require(model, "based_state_load: model");
    require(path, "based_state_load: path");
    require(state, "based_state_load: state");
    Loaded& loaded = *model->loaded;
    const ModelCall call(loaded);
    *state = new_state(model->loaded, based::load_sequence(path, loaded.model(), loaded.text.hash));
  });
}

based_status based_state_bytes(const based_state* state, unsigned char** data, size_t* bytes) {
  return guarded([&] {
    require(state, "based_state_bytes: state");
    require(data, "based_state_bytes: data");
    require(bytes, "based_state_bytes: bytes");
    Loaded& loaded = *state->loaded;
    const ModelCall call(loaded);
    based::require_finite_logits(loaded.model(), *state->sequence);
    const std::string content = based::sequence_file_content(*state->sequence, loaded.text.hash, kInMemory);
    *data = static_cast<unsigned char*>(allocate_copy(content.data(), content.size()));
    *bytes = content.size();
  });
}

based_status based_state_from_bytes(based_model* model, const void* data, size_t bytes, based_state** state) {
  return guarded([&] {
    require(model, "based_state_from_bytes: model");
    require(data, "based_state_from_bytes: data");
    require(state, "based_state_from_bytes: state");
    Loaded& loaded = *model->loaded;
    const ModelCall call(loaded);
    const auto* begin = static_cast<const std::byte*>(data);
    const std::vector<std::byte> aligned(begin, begin + bytes);  // the caller's bytes may be at any address
    const based::StateSnapshot snapshot = based::parse_state_file(aligned, kInMemory);
    based::require_model(snapshot, loaded.text.hash, kInMemory);
    *state = new_state(model->loaded, based::sequence_of(snapshot, loaded.model(), kInMemory));
  });
}

based_status based_state_ids(const based_state* state, const int64_t** ids, size_t* count) {
  return guarded([&] {
    require(state, "based_state_ids: state");
    require(ids, "based_state_ids: ids");
    require(count, "based_state_ids: count");
    *ids = state->sequence->ids.data();
    *count = state->sequence->ids.size();
  });
}

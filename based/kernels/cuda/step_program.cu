// Plans the kernel of a whole step from the launches of a captured graph, and puts it in their place.
#include <algorithm>
#include <cstring>
#include <optional>

#include "based/kernels/cuda/step_graph.h"
#include "based/kernels/cuda/step_log.h"
#include "based/kernels/cuda/step_program.cuh"

namespace based::kernels::cuda {
namespace {

using namespace detail;

thread_local StepLog* active_log = nullptr;

constexpr size_t kWorthwhile = 8;  // launches; fewer stay kernels of their own

// Memory of a launch. `early`: read before other blocks' outputs have come. Of a state the first slot stands for the one that is meant: in
// a recorded step nothing but the layer's own kernel touches it.
struct Access {
  Ranges early, reads, outputs, states;  // reads in the order of StepInstruction::in
};

struct Planned {
  StepInstruction step;
  Access access;
  int64_t in[3] = {-1, -1, -1}, out = -1;  // mailboxes, as places in all of their words
};

// What one of the launches becomes; nothing where the program has no instruction for it.
class Translator {
 public:
  explicit Translator(int threads) : threads_(threads) {}

  std::optional<Planned> operator()(const RmsNorm& p) const {
    if (p.rows != 1 || p.x_dtype != DType::f32 || p.dtype != DType::bf16 || p.earlier != nullptr) return {};
    if (p.width % 8 != 0 || p.width > 4 * threads_) return {};
    if (!aligned16(p.x) || !aligned16(p.add) || !aligned16(p.sum) || !aligned16(p.weight) || !aligned16(p.y)) return {};
    Planned to = make(StepKind::norm);
    to.step.arguments.norm = p;
    to.access.early = {range(p.weight, 2 * p.width)};
    to.access.reads = {range(p.add, 2 * p.width)};
    to.access.outputs = {range(p.y, 2 * p.width), range(p.inverse_rms, 4)};
    return to;
  }
  std::optional<Planned> operator()(const Linear& p) const { return linear(p, StepKind::linear); }
  std::optional<Planned> operator()(const LinearSwiglu& p) const { return linear(p.linear, StepKind::swiglu); }
  std::optional<Planned> operator()(const ShortConv&) const { return {}; }  // but see absorb()
  std::optional<Planned> operator()(const TaylorAttention& p) const {
    const int64_t features = packed_features(p.feature_dim);
    if (p.rows != 1 || p.dtype != DType::bf16 || p.decay != nullptr || p.denominator != nullptr || !p.state_is_settled) return {};
    if (p.head_dim % kStepColumns != 0 || features > std::min(threads_, kStepFeatures) || features * 4 > threads_ * kStepHeld) return {};
    if (p.heads * (p.head_dim / kStepColumns) > multiprocessors() || !aligned16(p.kv_state) || !aligned16(p.v)) return {};
    Planned to = make(StepKind::taylor);
    to.step.arguments.taylor = p;
    to.access.states = {range(p.kv_state, p.heads * features * p.head_dim * 4), range(p.k_state, p.heads * features * 4)};
    to.access.early = to.access.states;
    to.access.reads = {range(p.q, 2 * p.heads * p.feature_dim), range(p.k, 2 * p.heads * p.feature_dim),
                       range(p.v, 2 * p.heads * p.head_dim)};
    to.access.outputs = {range(p.y, 2 * p.heads * p.head_dim)};
    return to;
  }
  std::optional<Planned> operator()(const TaylorDeferred&) const { return {}; }  // only worth it for many texts
  std::optional<Planned> operator()(const CausalAttentionStep& p) const {
    if (p.rows != 1 || p.dtype != DType::bf16 || p.ring_dtype != DType::bf16 || !p.ring_is_settled || p.rotary_base == 0) return {};
    if (p.heads != p.kv_heads || p.heads > multiprocessors() || p.head_dim % 16 != 0 || p.head_dim > 128) return {};
    if (p.capacity > 128 || p.capacity * p.head_dim / 8 > threads_ || !aligned16(p.v) || !aligned16(p.k_ring) || !aligned16(p.v_ring))
      return {};
    Planned to = make(StepKind::window);
    to.step.arguments.window = p;
    const int64_t token = 2 * p.heads * p.head_dim;
    to.access.states = {range(p.k_ring, p.capacity * token), range(p.v_ring, p.capacity * token), range(p.position, 8)};
    to.access.early = to.access.states;
    to.access.reads = {range(p.q, token), range(p.k, token), range(p.v, token)};
    to.access.outputs = {range(p.y, token)};
    return to;
  }

  // A convolution right after the layer that makes its input and gate becomes part of it.
  static bool absorb(Planned& before, const ShortConv& p) {
    const Linear& layer = before.step.arguments.linear.linear;
    if (before.step.kind != StepKind::linear || p.x != layer.y || p.gate != static_cast<const char*>(p.x) + 2 * p.channels) return false;
    if (p.rows != 1 || p.dtype != DType::bf16 || p.taps != 3 || layer.out != 2 * p.channels || p.state == nullptr) return false;
    if (!aligned16(p.state) || !aligned16(p.weight) || !aligned16(p.bias) || p.channels % 8 != 0) return false;
    if (ceil_div(p.channels, multiprocessors()) > kStepBiased) return false;
    before.step.kind = StepKind::conv;
    before.step.arguments.linear.conv = p;
    const Range state = range(p.state, p.channels * 8);
    append(before.access.early, {range(p.weight, 6 * p.channels), range(p.bias, 2 * p.channels), state});
    before.access.outputs.insert(before.access.outputs.begin(), range(p.y, 2 * p.channels));
    before.access.states = {state};
    return true;
  }

 private:
  static Planned make(StepKind kind) {
    Planned to;
    to.step.kind = kind;
    return to;
  }
  std::optional<Planned> linear(const Linear& p, StepKind kind) const {
    const int64_t outputs = kind == StepKind::linear ? p.out : p.out / 2;
    if (p.rows != 1 || p.dtype != DType::bf16 || p.y_dtype != DType::bf16 || p.accumulate || !p.weight_is_constant) return {};
    const int64_t warps = threads_ / 32, groups = p.in / (32 * warps), share = ceil_div(outputs, multiprocessors());
    if (p.in % (32 * warps) != 0 || (groups != 1 && groups != 2 && groups != 4 && groups != 8)) return {};
    if (p.weight_stride != p.in || p.out > 1 << 20 || p.out % 2 != 0 || !aligned16(p.x) || !aligned16(p.weight)) return {};
    if (step_stage_rows(threads_, 2 * p.in) < 2 || (p.bias != nullptr && (share > kStepBiased || p.out % 8 != 0 || !aligned16(p.bias))))
      return {};
    Planned to = make(kind);
    to.step.arguments.linear = {p, {}};
    to.step.groups = static_cast<int32_t>(groups);
    while (2 << to.step.stage_shift <= step_stage_rows(threads_, 2 * p.in)) ++to.step.stage_shift;
    to.access.early = {range(p.bias, 2 * p.out), range(p.weight, 2 * p.out * p.in)};
    to.access.reads = {range(p.x, 2 * p.in)};
    to.access.outputs = {range(p.y, 2 * outputs)};
    return to;
  }
  int threads_;
};

bool is_linear(const StepInstruction& step) {
  return step.kind == StepKind::linear || step.kind == StepKind::swiglu || step.kind == StepKind::conv;
}

StepCompanions companions_of(const StepInstruction& step) {
  StepCompanions to;
  to.share = step.share;
  const auto set = [&to](int i, const void* source, int64_t each) {
    if (source != nullptr) to.source[i] = static_cast<const char*>(source), to.each[i] = static_cast<int32_t>(each);
  };
  if (step.kind == StepKind::norm) {
    to.whole = true;
    set(0, step.arguments.norm.weight, 2 * step.arguments.norm.width);
  }
  if (!is_linear(step)) return to;
  const Linear& p = step.arguments.linear.linear;
  set(kStepBias, p.bias, 2);
  if (p.bias != nullptr && step.kind != StepKind::linear) set(kStepGateBias, static_cast<const char*>(p.bias) + p.out, 2);
  if (step.kind != StepKind::conv) return to;
  const ShortConv& c = step.arguments.linear.conv;
  set(kStepTaps, c.weight, 6), set(kStepTapsBias, c.bias, 2), set(kStepState, c.state, 8);
  to.slot = c.slot, to.slot_bytes = c.channels * 8;
  return to;
}

// The program of a stretch of launches, as it grows.
class Plan {
 public:
  explicit Plan(int threads) : translate_(threads), blocks_(multiprocessors()) {}

  // False: it cannot be part of the program, which stays as it was.
  bool add(const StepLaunch& launch) {
    if (const auto* conv = std::get_if<ShortConv>(&launch.arguments)) return add_conv(*conv);
    std::optional<Planned> next = std::visit(translate_, launch.arguments);
    if (!next || overlap(next->access.early, written_)) return false;
    const StepKind kind = next->step.kind;
    const bool attends = kind == StepKind::taylor || kind == StepKind::window;
    if (attends && late_) return false;
    next->step.x_is_shared = finds_x(*next);
    if (next->step.x_is_shared) next->access.reads.clear();
    std::vector<Output*> sources;
    if (!find_sources(*next, sources) || overlap(next->access.outputs, read_) || overlap(next->access.outputs, {residual_})) return false;
    if (kind == StepKind::norm && !follow_residual(*next, sources[0])) return false;
    connect(*next, sources);
    if (kind == StepKind::norm && sources[0] != nullptr && late_ && sources[0]->step > *late_) late_.reset();
    next->step.share = share_of(next->step);
    if (attends) see_ahead(*next);
    push(*next);
    return true;
  }
  // Whether what it has is a program: states that many blocks read are written once a norm has heard of all blocks.
  bool is_complete() const { return !late_; }
  int64_t mailbox_bytes() const { return 4 * mailbox_words_; }

  int count() const { return static_cast<int>(steps_.size()); }
  std::vector<StepInstruction> instructions(uint32_t* mailboxes) const {
    std::vector<StepInstruction> all;
    for (const Planned& planned : steps_) {
      all.push_back(planned.step);
      for (int i = 0; i < 3; ++i)
        if (planned.in[i] >= 0) all.back().in[i] = mailboxes + planned.in[i];
      if (planned.out >= 0) all.back().out = mailboxes + planned.out;
    }
    for (const Output& output : outputs_) all[output.step].stores |= 1U << output.index;
    return all;
  }
  std::vector<StepCompanions> companions() const {
    std::vector<StepCompanions> all;
    for (const Planned& planned : steps_) all.push_back(companions_of(planned.step));
    return all;
  }
  std::vector<StepFetch> fetches() const {
    std::vector<StepFetch> all;
    for (const Planned& planned : steps_) {
      if (!is_linear(planned.step)) continue;
      const Linear& p = planned.step.arguments.linear.linear;
      all.push_back({static_cast<const char*>(p.weight), planned.step.kind == StepKind::linear ? 0 : p.out * p.in, planned.step.share,
                     static_cast<int32_t>(2 * p.in)});
    }
    return all;
  }

 private:
  // Memory that an instruction has written, and none after it.
  struct Output {
    Range memory;
    size_t step;
    int index;      // of the instruction's outputs
    bool is_heard;  // by other blocks, through a mailbox
  };

  // Of each read the output that it is, null: memory from before the program. False: part of an output, or what no mailbox has.
  bool find_sources(const Planned& next, std::vector<Output*>& sources) {
    for (const Range& read : next.access.reads) {
      sources.push_back(nullptr);
      if (!overlap({read}, written_)) continue;
      const auto found = std::find_if(outputs_.begin(), outputs_.end(), [&](const Output& o) { return contains(o.memory, read); });
      if (found == outputs_.end() || !found->is_heard || (read.begin - found->memory.begin) % 8 != 0) return false;
      sources.back() = &*found;
    }
    return true;
  }
  void connect(Planned& next, const std::vector<Output*>& sources) {
    for (size_t i = 0; i < sources.size(); ++i) {
      if (sources[i] == nullptr) {
        read_.push_back(next.access.reads[i]);
        continue;
      }
      int64_t& mailbox = steps_[sources[i]->step].out;
      if (mailbox < 0) mailbox = mailbox_words_, mailbox_words_ += round_up(sources[i]->memory.bytes / 2, 64);
      next.in[i] = mailbox + (next.access.reads[i].begin - sources[i]->memory.begin) / 2;
    }
    append(read_, next.access.early);
  }
  bool add_conv(const ShortConv& p) {
    if (steps_.empty() || outputs_.empty()) return false;
    Planned joint = steps_.back();
    if (!Translator::absorb(joint, p) || overlap(joint.access.early, written_)) return false;
    const Range y = joint.access.outputs[0];
    if (overlap({y}, read_) || overlap({y}, {residual_}) || overlap({y}, {joint.access.outputs[1]})) return false;
    outputs_.pop_back();  // the layer's own, which comes second now
    joint.step.share = share_of(joint.step);
    append(read_, joint.access.early);
    steps_.pop_back();
    push(joint);
    return true;
  }
  void push(const Planned& next) {
    const StepKind kind = next.step.kind;
    for (size_t i = 0; i < next.access.outputs.size(); ++i) {
      const Range& memory = next.access.outputs[i];
      if (memory.bytes == 0) continue;
      std::erase_if(outputs_, [&](const Output& o) { return overlap({o.memory}, {memory}); });
      if (overlap({memory}, {shared_x_})) shared_x_ = {};
      outputs_.push_back({memory, steps_.size(), static_cast<int>(i), i == 0 && kind != StepKind::norm});
    }
    append(written_, next.access.outputs), append(written_, next.access.states);
    if (kind == StepKind::norm) shared_x_ = next.access.outputs[0];
    if (kind == StepKind::window || (is_linear(next.step) && !next.step.x_is_shared)) shared_x_ = {};  // its place is used
    steps_.push_back(next);
  }
  // Nobody always has the larger share.
  StepShare share_of(const StepInstruction& step) const {
    int64_t outputs = 1;
    if (is_linear(step)) outputs = step.arguments.linear.linear.out / (step.kind == StepKind::linear ? 1 : 2);
    return {static_cast<int32_t>(outputs / blocks_), static_cast<int32_t>(outputs % blocks_),
            static_cast<int32_t>(steps_.size() * 37 % static_cast<size_t>(blocks_))};
  }
  // A state is requested a few instructions before it is used; registers hold one.
  void see_ahead(Planned& next) {
    constexpr size_t kAhead = 5;
    Planned see = next;
    see.step.kind = next.step.kind == StepKind::taylor ? StepKind::see_taylor : StepKind::see_window;
    see.access = {};
    for (int64_t& mailbox : see.in) mailbox = -1;
    const size_t at = std::max(attended_, steps_.size() - std::min(kAhead, steps_.size()));
    steps_.insert(steps_.begin() + static_cast<std::ptrdiff_t>(at), see);
    for (Output& output : outputs_) output.step += output.step >= at ? 1 : 0;
    late_ = steps_.size(), attended_ = steps_.size() + 1;
  }
  // The residual stream stays in registers, and its memory is written by the last norm alone: once it has heard of all blocks, if they
  // have read it.
  bool follow_residual(Planned& next, const Output* add) {
    RmsNorm& p = next.step.arguments.norm;
    const Range x = range(p.x, 4 * p.width), sum = range(p.sum, 4 * p.width);
    const bool loads = residual_.bytes == 0 || p.x != residual_.begin || x.bytes != residual_.bytes;
    if (loads && (overlap({x}, {sum}) || overlap({x}, written_))) return false;
    const bool hears_all = add != nullptr && steps_[add->step].step.share.each > 0;
    if (p.sum != nullptr && (!hears_all || (p.sum != p.x && overlap({sum}, written_)))) return false;
    if (p.sum == nullptr && p.add != nullptr) return false;
    next.step.loads_x = loads;
    if (loads) read_.push_back(x);
    for (Planned& before : steps_)
      if (before.step.kind == StepKind::norm && p.sum != nullptr && before.step.arguments.norm.sum == p.sum)
        before.step.arguments.norm.sum = nullptr;
    residual_ = p.sum != nullptr ? sum : x;
    if (p.sum != nullptr) written_.push_back(sum);
    return true;
  }
  bool finds_x(const Planned& next) const {
    if (next.step.kind != StepKind::linear && next.step.kind != StepKind::swiglu) return false;
    const Linear& p = next.step.arguments.linear.linear;
    return shared_x_.bytes == 2 * p.in && shared_x_.begin == p.x;
  }

  const Translator translate_;
  const int blocks_;
  std::vector<Planned> steps_;
  std::vector<Output> outputs_;
  Ranges read_, written_;  // memory from before the program; by the program
  int64_t mailbox_words_ = 0;
  size_t attended_ = 0;            // behind the latest taylor or window
  std::optional<size_t> late_;     // that instruction, until a norm has heard of all blocks after it
  Range residual_{}, shared_x_{};  // what registers and shared memory hold
};

// The number of threads by which most of the layers' rows can be shared out.
int choose_threads(const StepLog& log) {
  int best = kStepMostThreads;
  int64_t most = -1;
  for (int threads = kStepMostThreads; threads >= kStepFewestThreads; threads -= 32) {
    const Translator translate(threads);
    const int64_t known = std::count_if(log.launches().begin(), log.launches().end(), [&](const StepLaunch& launch) {
      return std::visit([&](const auto& p) { return translate(p).has_value(); }, launch.arguments);
    });
    if (known > most) most = known, best = threads;
  }
  return best;
}

// The program's memory: counters, its lists, mailboxes.
cudaError_t upload(const Plan& plan, const StepKernel& kernel, int threads, const std::function<void*(int64_t)>& allocate,
                   StepProgram& program) {
  constexpr size_t kAlignment = 256;
  const auto bytes_of = [](const auto& values) { return static_cast<size_t>(round_up(values.size() * sizeof(values[0]), kAlignment)); };
  const auto fetches = plan.fetches();
  const auto companions = plan.companions();
  auto instructions = plan.instructions(nullptr);
  const size_t fetches_at = kAlignment, companions_at = fetches_at + bytes_of(fetches),
               instructions_at = companions_at + bytes_of(companions), mailboxes_at = instructions_at + bytes_of(instructions);
  std::vector<char> image(mailboxes_at + static_cast<size_t>(plan.mailbox_bytes()));  // zeros: launches count from 1
  auto* memory = static_cast<char*>(allocate(static_cast<int64_t>(image.size())));
  instructions = plan.instructions(reinterpret_cast<uint32_t*>(memory + mailboxes_at));
  const auto put = [&image](size_t at, const auto& values) {
    std::memcpy(image.data() + at, values.data(), values.size() * sizeof(values[0]));
  };
  put(fetches_at, fetches), put(companions_at, companions), put(instructions_at, instructions);
  program.counters = reinterpret_cast<unsigned*>(memory);
  program.fetches = reinterpret_cast<const StepFetch*>(memory + fetches_at);
  program.companions = reinterpret_cast<const StepCompanions*>(memory + companions_at);
  program.instructions = reinterpret_cast<const StepInstruction*>(memory + instructions_at);
  program.instruction_count = plan.count(), program.fetch_count = static_cast<int32_t>(fetches.size());
  program.threads = threads, program.stages = kernel.stages;
  return cudaMemcpy(memory, image.data(), image.size(), cudaMemcpyHostToDevice);
}

// The blocks wait for each other, so all must be resident at once: a cooperative launch.
cudaError_t replace(cudaGraph_t graph, const StepLaunch* first, size_t count, const StepKernel& kernel, StepProgram program) {
  Edges in, out;
  cudaError_t error = read_edges(cudaGraphNodeGetDependencies, node_of(first[0]), in);
  if (error == cudaSuccess) error = read_edges(cudaGraphNodeGetDependentNodes, node_of(first[count - 1]), out);
  for (size_t i = 0; i < count && error == cudaSuccess; ++i) error = cudaGraphDestroyNode(node_of(first[i]));
  if (error != cudaSuccess) return error;
  void* arguments[] = {&program};
  cudaKernelNodeParams params = {};
  params.func = kernel.function, params.kernelParams = arguments;
  params.gridDim = static_cast<unsigned>(kernel.blocks), params.blockDim = static_cast<unsigned>(kernel.threads);
  params.sharedMemBytes = static_cast<unsigned>(kernel.shared_bytes);
  cudaGraphNode_t node = nullptr;
  error = cudaGraphAddKernelNode(&node, graph, in.nodes.data(), in.nodes.size(), &params);
  if (error != cudaSuccess) return error;
  cudaLaunchAttributeValue value = {};
  value.cooperative = 1;
  error = cudaGraphKernelNodeSetAttribute(node, cudaLaunchAttributeCooperative, &value);
  const Nodes from(out.nodes.size(), node);
  if (error != cudaSuccess || from.empty()) return error;
  return cudaGraphAddDependencies(graph, from.data(), out.nodes.data(), nullptr, from.size());
}

}  // namespace

StepLog::StepLog() : outer_(active_log) { active_log = this; }
StepLog::~StepLog() { active_log = outer_; }

void note_launch(StepLaunch launch, Stream stream) {
  if (active_log == nullptr) return;
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  const cudaGraphNode_t* nodes = nullptr;
  const cudaGraphEdgeData* edges = nullptr;
  size_t count = 0;
  const cudaError_t error = cudaStreamGetCaptureInfo(stream_of(stream), &status, nullptr, nullptr, &nodes, &edges, &count);
  if (error != cudaSuccess || status != cudaStreamCaptureStatusActive || count != 1) return;
  launch.node = nodes[0];
  active_log->launches_.push_back(std::move(launch));
}

StepFusion fuse_step(void* graph, const StepLog& log, const std::function<void*(int64_t bytes)>& allocate) {
  StepFusion done;
  const std::vector<StepLaunch>& launches = log.launches();
  const int threads = choose_threads(log);
  StepKernel kernel;
  if (launches.empty() || !step_kernel(threads, kernel).ok()) return done;
  for (size_t first = 0, next = 0; first < launches.size(); first = std::max(next, first + 1)) {
    Plan plan(threads);
    for (next = first; next < launches.size(); ++next)
      if ((next > first && !follows(launches[next - 1], launches[next])) || !plan.add(launches[next])) break;
    if (next - first < kWorthwhile || !plan.is_complete()) continue;
    StepProgram program;
    cudaError_t error = upload(plan, kernel, threads, allocate, program);
    if (error == cudaSuccess) error = replace(static_cast<cudaGraph_t>(graph), &launches[first], next - first, kernel, program);
    if (done.status = status_of(error); error != cudaSuccess) return done;
    done.launches += static_cast<int>(next - first), ++done.kernels;
  }
  return done;
}

}  // namespace based::kernels::cuda

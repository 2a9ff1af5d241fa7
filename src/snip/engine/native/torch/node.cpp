// A straight network as one node of autograd, in C++: what fused/node.py does, without Python's time. This
// library is linked to one version of torch and is optional. Where it is missing, Python does the same;
// and whatever is unusual, such as a second derivative or a parameter that moved, is left to Python here.
#include <torch/csrc/utils/pybind.h>

#include <ATen/Parallel.h>
#include <c10/core/SafePyObject.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/PyInterpreter.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>

#include "memory.hpp"

#if !defined(SNIP_ORIGIN)
#define SNIP_ORIGIN ""
#endif

namespace {

using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

// Read from the file before it is loaded: in another torch, loading alone could end the process.
[[gnu::used]] const char origin[] = SNIP_ORIGIN;

typedef int32_t (*Forward)(const void* network, const float* x, float* y, float* saved, int64_t batch,
                           int32_t threads);
typedef int32_t (*Backward)(const void* network, float* saved, const float* dy, float* gradients,
                            int64_t batch, int32_t threads);
constexpr int32_t DONE = 0;  // a kernel's status (errors.hpp)

// A network as its kernels take it. Nothing of Python is held: a graph that a user's network keeps
// would be a cycle that nobody collects.
struct Network {
    uintptr_t address, forward, backward;  // of the network's struct and of the kernels
    int64_t lanes, room, inputs, outputs, gradients;
    std::vector<std::pair<int64_t, int64_t>> pieces;  // offset and length of each; -1: not trained
    Places places;                                    // of its parameters
    std::shared_ptr<Room> memory;

    int64_t floats(int64_t batch) const { return (batch + lanes - 1) / lanes * room; }
    const void* native() const { return reinterpret_cast<const void*>(address); }
};

struct NetworkNode : torch::autograd::Node {
    std::shared_ptr<const Network> network;
    std::optional<c10::SafePyObject> body;  // `Body` of fused/program.py, which keeps the kernels' memory
    int64_t batch = 0;
    SavedVariable saved;
    std::vector<SavedVariable> parameters;
    bool released = false;

    std::string name() const override { return "_NetworkBackward"; }

    void release_variables() override {
        std::lock_guard<std::mutex> lock(mutex_);
        released = true;
        saved.reset_data();
        parameters.clear();
        body.reset();
    }

    // Const since torch 2.7: one of the two overrides torch's.
    void compiled_args(torch::dynamo::autograd::CompiledNodeArgs&) const { refuse_to_be_compiled(); }
    void compiled_args(torch::dynamo::autograd::CompiledNodeArgs&) { refuse_to_be_compiled(); }

    static void refuse_to_be_compiled() {
        TORCH_CHECK_NOT_IMPLEMENTED(false,
                                    "an accelerated network's backward pass is native code, which compiled "
                                    "autograd cannot follow: set SNIP_NODE=python in the environment before "
                                    "the start, or train snip.densify(model).");
    }

    variable_list apply(variable_list&& incoming) override {
        std::lock_guard<std::mutex> lock(mutex_);
        TORCH_CHECK(!released, torch::autograd::ERR_BACKWARD_TWICE);
        Tensor dy = incoming[0].defined() ? incoming[0] : input_metadata(0).zeros_like();
        variable_list kept{saved.unpack(getptr())}, theirs;
        for (const SavedVariable& parameter : parameters) theirs.push_back(parameter.unpack(getptr()));
        float* activations = address_of(kept[0]);
        const float* from = address_of(dy);
        bool usual = !at::GradMode::is_enabled() && from && activations &&
                     dy.sizes() == at::IntArrayRef({batch, network->outputs}) &&
                     kept[0].numel() == network->floats(batch) && network->places.are(theirs);
        if (usual) return native(activations, from);
        kept.insert(kept.end(), theirs.begin(), theirs.end());
        return ask("backward", kept, dy);
    }

    variable_list native(float* activations, const float* dy) {
        Tensor all = empty(network->gradients);
        int32_t status = reinterpret_cast<Backward>(network->backward)(
            network->native(), activations, dy, all.mutable_data_ptr<float>(), batch, at::get_num_threads());
        if (status != DONE) ask("raise_status", status);
        variable_list made;
        made.reserve(network->pieces.size());
        for (auto [offset, count] : network->pieces)
            made.push_back(offset < 0 ? Tensor() : part_of(all, offset, count));
        return made;
    }

    // Calls a method of `Body`, whose errors become those of the backward pass.
    template <class... Arguments>
    variable_list ask(const char* method, const Arguments&... arguments) {
        py::gil_scoped_acquire gil;
        try {
            py::handle object(body->ptr(getPyInterpreter()));
            py::object answer = object.attr(method)(arguments...);
            variable_list made;
            for (auto& gradient : answer.cast<std::vector<std::optional<Tensor>>>())
                made.push_back(gradient.value_or(Tensor()));
            return made;
        } catch (py::error_already_set& error) {
            error.restore();
            python_error carried;
            carried.persist();
            throw carried;
        }
    }
};

// A node behind the pointer that torch holds it by: shared_ptr, and in newer versions intrusive_ptr.
template <class Node, class Base>
auto new_node(const std::shared_ptr<Base>&) {
    return std::make_shared<Node>();
}

template <class Node, class Base>
auto new_node(const c10::intrusive_ptr<Base>&) {
    return c10::make_intrusive<Node>();
}

// The network's output for x, a node of autograd behind it; None if x is not as the kernels take it.
py::object forward(const std::shared_ptr<Network>& network, const Tensor& x,
                   const std::vector<Tensor>& parameters, py::object body) {
    HANDLE_TH_ERRORS  // what a hook on saved tensors raises, it raises here too
        const float* from = address_of(x);
    int64_t batch = from && x.dim() ? x.size(0) : 0;
    if (!batch || x.numel() != batch * network->inputs) return py::none();
    Tensor y = empty({batch, network->outputs}), saved = network->memory->floats(network->floats(batch));
    float *to = y.mutable_data_ptr<float>(), *room = saved.mutable_data_ptr<float>();
    int32_t status;
    {
        py::gil_scoped_release others;
        status = reinterpret_cast<Forward>(network->forward)(network->native(), from, to, room, batch,
                                                             at::get_num_threads());
    }
    if (status != DONE) return body.attr("raise_status")(status);
    auto node = new_node<NetworkNode>(torch::autograd::Edge().function);
    node->set_next_edges(torch::autograd::collect_next_edges(parameters));
    node->network = network;
    node->body.emplace(body.release().ptr(), getPyInterpreter());
    node->batch = batch;
    node->saved = SavedVariable(saved, false);
    node->parameters.reserve(parameters.size());
    for (const Tensor& parameter : parameters) node->parameters.emplace_back(parameter, false);
    torch::autograd::set_history(y, node);
    return py::cast(y);
    END_HANDLE_TH_ERRORS_PYBIND
}

// The addresses of gradients with these shapes; None if torch has to read one of them.
py::object addresses(const std::vector<Tensor>& tensors, const std::vector<std::vector<int64_t>>& shapes) {
    py::list made;
    for (size_t i = 0; i < tensors.size(); i++) {
        float* at = tensors[i].defined() && tensors[i].sizes() == at::IntArrayRef(shapes[i])
                        ? address_of(tensors[i])
                        : nullptr;
        if (!at) return py::none();
        made.append(reinterpret_cast<uintptr_t>(at));
    }
    return made;
}

}  // namespace

PYBIND11_MODULE(_node, module) {
    py::class_<Places>(module, "Places").def(py::init<std::vector<Tensor>>()).def("are", &Places::are);
    py::class_<Room, std::shared_ptr<Room>>(module, "Room").def(py::init<uintptr_t, size_t>());
    py::class_<Network, std::shared_ptr<Network>>(module, "Network")
        .def(py::init([](std::array<uintptr_t, 3> addresses, std::array<int64_t, 5> sizes,
                         std::vector<std::pair<int64_t, int64_t>> pieces, const Places& places,
                         std::shared_ptr<Room> memory) {
            auto [address, forward, backward] = addresses;
            auto [lanes, room, inputs, outputs, gradients] = sizes;
            return std::make_shared<Network>(Network{address, forward, backward, lanes, room, inputs, outputs,
                                                     gradients, std::move(pieces), places,
                                                     std::move(memory)});
        }))
        .def("forward", &forward);
    module.def("addresses", &addresses);
}

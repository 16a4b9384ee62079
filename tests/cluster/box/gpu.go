package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	dp "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// gpus is a device plugin that offers devices without hardware: what the scheduler and a container see is real.
type gpus struct {
	dp.UnimplementedDevicePluginServer
	devices []*dp.Device
}

func (g *gpus) GetDevicePluginOptions(context.Context, *dp.Empty) (*dp.DevicePluginOptions, error) {
	return &dp.DevicePluginOptions{}, nil
}

func (g *gpus) ListAndWatch(_ *dp.Empty, stream dp.DevicePlugin_ListAndWatchServer) error {
	if err := stream.Send(&dp.ListAndWatchResponse{Devices: g.devices}); err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}

func (g *gpus) Allocate(_ context.Context, request *dp.AllocateRequest) (*dp.AllocateResponse, error) {
	answer := &dp.AllocateResponse{}
	for _, container := range request.ContainerRequests {
		answer.ContainerResponses = append(answer.ContainerResponses, &dp.ContainerAllocateResponse{
			Envs: map[string]string{"NVIDIA_VISIBLE_DEVICES": strings.Join(container.DevicesIds, ",")},
		})
	}
	return answer, nil
}

// serveGPUs: fake-gpu-plugin COUNT. It waits for the kubelet; SIGKILL takes the devices away.
func serveGPUs(args []string) error {
	if len(args) != 1 {
		return errors.New("usage: fake-gpu-plugin COUNT")
	}
	count, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	plugin := &gpus{}
	for i := range count {
		plugin.devices = append(plugin.devices, &dp.Device{ID: fmt.Sprintf("GPU-fake-%d", i), Health: dp.Healthy})
	}
	const socket = "fake-gpu.sock"
	if err := os.MkdirAll(dp.DevicePluginPath, 0o755); err != nil {
		return err
	}
	if err := os.Remove(dp.DevicePluginPath + socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	kubelet, err := grpc.NewClient("unix://"+dp.KubeletSocket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	kubelet.Connect()
	registration := dp.NewRegistrationClient(kubelet)
	// The kubelet empties the folder when it starts: listen only after it answers, register when listening.
	listener, err := listenAfter(kubelet, dp.DevicePluginPath+socket)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	dp.RegisterDevicePluginServer(server, plugin)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	request := &dp.RegisterRequest{Version: dp.Version, Endpoint: socket, ResourceName: "nvidia.com/gpu"}
	if _, err := registration.Register(context.Background(), request, grpc.WaitForReady(true)); err != nil {
		return err
	}
	return <-served
}

func listenAfter(kubelet *grpc.ClientConn, path string) (net.Listener, error) {
	for state := kubelet.GetState(); state.String() != "READY"; state = kubelet.GetState() {
		kubelet.Connect()
		kubelet.WaitForStateChange(context.Background(), state)
	}
	return net.Listen("unix", path)
}

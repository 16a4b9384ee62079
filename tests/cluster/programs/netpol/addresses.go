package main

import (
	"context"
	"log"
	"net/netip"
	"sync"
	"time"

	nri "github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
	core "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"
)

// addresses tells which pod has an address. For this node's pods the container runtime says it, before a process of the
// pod starts; the API server, which hears of it up to two seconds later, says it for the others.
type addresses struct {
	local  netip.Prefix
	remote cache.Indexer
	mutex  sync.Mutex
	owners map[string]sandbox
}

type sandbox struct{ id, pod string }

const byIP = "ip"

func newAddresses(local netip.Prefix, pods cache.SharedIndexInformer) (*addresses, error) {
	err := pods.AddIndexers(cache.Indexers{byIP: func(object any) ([]string, error) {
		pod, ok := object.(*core.Pod)
		// A finished pod's address may be another's by now.
		if !ok || pod.Spec.HostNetwork || pod.Status.Phase == core.PodSucceeded || pod.Status.Phase == core.PodFailed {
			return nil, nil
		}
		var found []string
		for _, ip := range pod.Status.PodIPs {
			found = append(found, ip.IP)
		}
		return found, nil
	}})
	return &addresses{local: local, remote: pods.GetIndexer(), owners: map[string]sandbox{}}, err
}

// LookupPod gives namespace/name of an address.
func (a *addresses) LookupPod(ip string) (string, bool) {
	if address, err := netip.ParseAddr(ip); err != nil || a.local.Contains(address) {
		a.mutex.Lock()
		defer a.mutex.Unlock()
		owner, known := a.owners[ip]
		return owner.pod, known
	}
	keys, err := a.remote.IndexKeys(byIP, ip)
	if err != nil || len(keys) != 1 { // two: the API server has not yet heard that one of them ended
		return "", false
	}
	return keys[0], true
}

// follow listens to the runtime until the context ends, through its restarts.
func (a *addresses) follow(ctx context.Context) {
	for ctx.Err() == nil {
		plugin, err := stub.New(a, stub.WithPluginName("netpol"), stub.WithPluginIdx("10"), stub.WithOnClose(func() {}))
		if err == nil {
			err = plugin.Run(ctx)
		}
		log.Print("container runtime: ", err)
		select {
		case <-ctx.Done():
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// Synchronize is the runtime's first word: the pods that are there.
func (a *addresses) Synchronize(_ context.Context, pods []*nri.PodSandbox, _ []*nri.Container) ([]*nri.ContainerUpdate, error) {
	a.mutex.Lock()
	a.owners = map[string]sandbox{}
	a.mutex.Unlock()
	for _, pod := range pods {
		a.add(pod)
	}
	return nil, nil
}

// RunPodSandbox comes when a pod has its addresses; its containers start after our answer.
func (a *addresses) RunPodSandbox(_ context.Context, pod *nri.PodSandbox) error {
	a.add(pod)
	return nil
}

// RemovePodSandbox may come after another pod got the address.
func (a *addresses) RemovePodSandbox(_ context.Context, pod *nri.PodSandbox) error {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	for ip, owner := range a.owners {
		if owner.id == pod.GetId() {
			delete(a.owners, ip)
		}
	}
	return nil
}

func (a *addresses) add(pod *nri.PodSandbox) {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	for _, ip := range pod.GetIps() {
		a.owners[ip] = sandbox{id: pod.GetId(), pod: pod.GetNamespace() + "/" + pod.GetName()}
	}
}

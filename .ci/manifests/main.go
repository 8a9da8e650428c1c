// Parses manifests as Kubernetes does: reads documents from standard input, each strictly into the
// type that it declares, so that an unknown field or a value of the wrong type is an error.
package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	yamlreader "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

var kinds = map[string]func() any{
	"apps/v1 Deployment":                     func() any { return new(appsv1.Deployment) },
	"v1 Service":                             func() any { return new(corev1.Service) },
	"policy/v1 PodDisruptionBudget":          func() any { return new(policyv1.PodDisruptionBudget) },
	"autoscaling/v2 HorizontalPodAutoscaler": func() any { return new(autoscalingv2.HorizontalPodAutoscaler) },
}

func main() {
	documents := yamlreader.NewYAMLReader(bufio.NewReader(os.Stdin))
	for {
		text, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return
		}
		var what metav1.TypeMeta
		if err == nil {
			err = yaml.Unmarshal(text, &what)
		}
		name := what.APIVersion + " " + what.Kind
		if make, known := kinds[name]; err == nil && known {
			err = yaml.UnmarshalStrict(text, make())
		} else if err == nil {
			err = errors.New("unsupported kind")
		}
		if err != nil {
			fmt.Println(name+":", err)
			os.Exit(1)
		}
		fmt.Println("Kubernetes accepts the", what.Kind)
	}
}
